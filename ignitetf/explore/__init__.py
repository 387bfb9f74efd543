"""Inspect a data set without changing it: `head`, `stats`, `preview` and `verify`.

They are built on `read`, and none of them needs TensorFlow.
"""
