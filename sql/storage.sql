-- Whether the default data region keeps its pages on disk, and the bytes of a page, on the node that is asked.
SELECT NAME, VALUE FROM SYS.CONFIGURATION
WHERE NAME = 'DataStorageConfiguration.DefaultDataRegionConfiguration.PersistenceEnabled'
    OR NAME = 'DataStorageConfiguration.PageSize'
