"""`ignitetf ui`: data sets, images, SQL, jobs, files and nodes in a web browser of this machine.

request -> guard -> app -> worker thread -> **views** -> templates

Pages are rendered on the server; their script only repeats requests. Data are read from the cluster
on request, in pieces whose size does not depend on the size of the data set.
"""
