"""The measurements of `ignitetf bench` on a user's own cluster.

Comparisons that only concern the development of ignitetf are in benchmarks/, outside the wheel.
"""
