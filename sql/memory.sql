-- Used and maximum bytes of each data region, on the connected node.
SELECT NAME, VALUE FROM SYS.METRICS
WHERE NAME LIKE 'io.dataregion.%.TotalUsedSize' OR NAME LIKE 'io.dataregion.%.MaxSize'
