-- The statements that run on the connected node, except this one.
SELECT QUERY_ID, SQL FROM SYS.SQL_QUERIES WHERE SQL NOT LIKE '%SYS.SQL_QUERIES%'
