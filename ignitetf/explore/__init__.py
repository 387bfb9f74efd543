"""Commands that look at a data set without changing it: head, stats, preview, verify.

They are built on `read`, and none of them needs TensorFlow.
"""
