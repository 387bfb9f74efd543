-- Storage of the default data region on the connected node: on disk or not, and its page size.
SELECT NAME, VALUE FROM SYS.CONFIGURATION
WHERE NAME = 'DataStorageConfiguration.DefaultDataRegionConfiguration.PersistenceEnabled'
    OR NAME = 'DataStorageConfiguration.PageSize'
