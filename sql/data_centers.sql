-- The value of an attribute of each node that has it.
SELECT NODE_ID, VALUE FROM SYS.NODE_ATTRIBUTES WHERE NAME = ?
