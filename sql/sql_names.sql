-- Schema, name and cache of each SQL table, as tables.sql has them.
SELECT T.SCHEMA_NAME || '.' || COALESCE(V.NAME, T.TABLE_NAME), T.CACHE_NAME
FROM SYS.TABLES T
LEFT JOIN SYS.VIEWS V
    ON V.SCHEMA = T.SCHEMA_NAME AND RTRIM(V.SQL) = 'SELECT * FROM "' || T.TABLE_NAME || '"'
WHERE SUBSTRING(T.VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
