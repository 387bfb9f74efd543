"""What this machine knows about its embedded nodes: their processes, state files and logs.

`settings` and `net` use it, so it imports neither `node` nor anything heavy.
"""
