"""Training jobs: their records in the cluster, their output, and how to inspect them."""
