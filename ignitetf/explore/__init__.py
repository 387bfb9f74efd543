"""What `head`, `stats`, `preview` and `verify` do: look at a data set without changing it.

They are built on `read`, and none of them needs TensorFlow.
"""
