-- Every table or view with its columns: tables of users have the names of the views that
-- create_view.sql made over them, without those that only carry a cache (create_cache.sql), and
-- those of the system.
SELECT C.SCHEMA_NAME, COALESCE(V.NAME, C.TABLE_NAME), C.COLUMN_NAME
FROM SYS.TABLE_COLUMNS C
JOIN SYS.TABLES T ON T.SCHEMA_NAME = C.SCHEMA_NAME AND T.TABLE_NAME = C.TABLE_NAME
LEFT JOIN SYS.VIEWS V
    ON V.SCHEMA = C.SCHEMA_NAME AND RTRIM(V.SQL) = 'SELECT * FROM "' || C.TABLE_NAME || '"'
WHERE C.COLUMN_NAME NOT IN ('_KEY', '_VAL')
    AND SUBSTRING(T.VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
UNION ALL
SELECT SCHEMA_NAME, VIEW_NAME, COLUMN_NAME FROM SYS.VIEW_COLUMNS
