"""Compute the size of the cluster that a training needs.

workload, service times -> `sizing` -> nodes, partitions, workers
"""
