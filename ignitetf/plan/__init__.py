"""How large a cluster a training needs.

workload, service times -> `sizing` -> nodes, partitions, workers
"""
