-- Bytes in use and at most of each data region, on the node that is asked.
SELECT NAME, VALUE FROM SYS.METRICS
WHERE NAME LIKE 'io.dataregion.%.TotalUsedSize' OR NAME LIKE 'io.dataregion.%.MaxSize'
