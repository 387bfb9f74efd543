-- The statements that run on the node that is asked, but this one.
SELECT QUERY_ID, SQL FROM SYS.SQL_QUERIES WHERE SQL NOT LIKE '%SYS.SQL_QUERIES%'
