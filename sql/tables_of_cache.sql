-- All tables of a cache, with the one that only carries it.
SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES WHERE CACHE_NAME = ?
