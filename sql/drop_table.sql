DROP TABLE "{schema}"."{table}"
