"""What `ignitetf bench` measures on a user's own cluster; comparisons for ourselves are in benchmarks/."""
