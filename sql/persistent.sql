-- Whether the default data region keeps its pages on disk, on the node that is asked.
SELECT VALUE FROM SYS.CONFIGURATION
WHERE NAME = 'DataStorageConfiguration.DefaultDataRegionConfiguration.PersistenceEnabled'
