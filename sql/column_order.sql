-- No rows: the names of the result are the columns in the order of the table.
SELECT * FROM "{schema}"."{table}" WHERE FALSE
