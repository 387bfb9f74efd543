-- The columns of the tables of a cache, without a table that only carries it (create_cache.sql).
-- CREATE TABLE does not change names; other tables have the names of fields in capitals.
SELECT T.SCHEMA_NAME, T.TABLE_NAME, T.KEY_ALIAS, T.VALUE_ALIAS, T.VALUE_TYPE_NAME, C.IS_SQL_ESCAPE_ALL,
    L.COLUMN_NAME, L.TYPE, L.PK
FROM SYS.TABLES T
JOIN SYS.CACHES C ON C.CACHE_NAME = T.CACHE_NAME
JOIN SYS.TABLE_COLUMNS L ON L.SCHEMA_NAME = T.SCHEMA_NAME AND L.TABLE_NAME = T.TABLE_NAME
WHERE T.CACHE_NAME = ? AND SUBSTRING(T.VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
    AND L.COLUMN_NAME NOT IN ('_KEY', '_VAL')
