"""The embedded nodes of this machine: their processes, state files and logs.

`settings` and `net` use it, so it imports neither `node` nor anything heavy.
"""
