-- Names of the views that create_view.sql made over the tables of a cache.
SELECT V.NAME FROM SYS.VIEWS V
JOIN SYS.TABLES T ON RTRIM(V.SQL) = 'SELECT * FROM "' || T.TABLE_NAME || '"'
WHERE V.SCHEMA = 'PUBLIC' AND T.SCHEMA_NAME = 'PUBLIC' AND T.CACHE_NAME = ?
