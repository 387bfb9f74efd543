-- Tables, with their caches, and views, with their statements, that have one of four names.
SELECT 'TABLE', TABLE_NAME, CACHE_NAME FROM SYS.TABLES
WHERE SCHEMA_NAME = 'PUBLIC' AND TABLE_NAME IN (?, ?, ?, ?)
UNION ALL
SELECT 'VIEW', NAME, SQL FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC' AND NAME IN (?, ?, ?, ?)
