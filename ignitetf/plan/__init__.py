"""How large a cluster a training needs, and how it would go on one that is not there.

workload, service times -> `sizing` -> nodes, partitions, workers;  plan -> `simulation` -> an epoch
"""
