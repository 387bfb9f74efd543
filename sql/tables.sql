-- SQL tables, without those that only carry a cache (create_cache.sql); those of one cache where
-- a name is given, all where the parameter is null.
SELECT SCHEMA_NAME, TABLE_NAME, CACHE_NAME, KEY_TYPE_NAME, VALUE_TYPE_NAME, AFFINITY_KEY_COLUMN
FROM SYS.TABLES
WHERE SUBSTRING(VALUE_TYPE_NAME, 1, 13) <> 'ignitetf.Any.'
    AND (CAST(? AS VARCHAR) IS NULL OR CACHE_NAME = ?)
ORDER BY SCHEMA_NAME, TABLE_NAME
