-- The tables whose rows are the entries of a cache, without one that only carries it
-- (create_cache.sql).
SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES
WHERE CACHE_NAME = ? AND SUBSTRING(VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
ORDER BY SCHEMA_NAME, TABLE_NAME
