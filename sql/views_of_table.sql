-- Names of the views that create_view.sql made over a table.
SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC' AND RTRIM(SQL) = 'SELECT * FROM "' || ? || '"'
