"""Training jobs: what is recorded of them in the cluster, their output, and how to look at them."""
