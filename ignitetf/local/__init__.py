"""Embedded nodes of this machine as everybody may see them: their processes, state files and logs."""
