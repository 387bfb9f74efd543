"""`ignitetf ui`: data sets, images, SQL, jobs, files and nodes in a web browser of this machine.

request -> guard -> app -> worker thread -> **views** -> templates

Pages are made on the server; the script in them only repeats requests. Everything is read from the
cluster when it is asked for, in pieces whose size does not depend on that of the data set.
"""
