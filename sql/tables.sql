-- SQL tables, without those that only carry a cache (create_cache.sql), under the names of the views
-- that create_view.sql made over them; those of one cache where a name is given, all where the
-- parameter is null.
SELECT T.SCHEMA_NAME, COALESCE(V.NAME, T.TABLE_NAME), T.TABLE_NAME, T.CACHE_NAME, T.KEY_TYPE_NAME,
    T.VALUE_TYPE_NAME, T.AFFINITY_KEY_COLUMN
FROM SYS.TABLES T
LEFT JOIN SYS.VIEWS V
    ON V.SCHEMA = T.SCHEMA_NAME AND RTRIM(V.SQL) = 'SELECT * FROM "' || T.TABLE_NAME || '"'
WHERE SUBSTRING(T.VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
    AND (CAST(? AS VARCHAR) IS NULL OR T.CACHE_NAME = ?)
ORDER BY T.SCHEMA_NAME, COALESCE(V.NAME, T.TABLE_NAME)
