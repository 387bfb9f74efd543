"""Find out why an embedded node ended, for its status and for clients that cannot reach it."""

from __future__ import annotations

import shutil
from pathlib import Path

from ignitetf.local.logs import end_cause
from ignitetf.local.state import Member, all_states

__all__ = ["cause_of_end", "ended_at"]

# With less free space Ignite cannot continue: it writes 64 MB at once.
_FULL_BYTES = 4 << 20


def ended_at(address: str) -> str | None:
    """Describe the end of the embedded node at this address; None if no ended node is known.

    A node that was stopped is forgotten; one that ended by itself is still known.
    """
    for state in all_states():
        for member in state.members:
            if member.address == address and state.phase == "running" and not member.alive:
                return f"node {state.name!r} has ended: {cause_of_end(member)}"
    return None


def cause_of_end(member: Member) -> str:
    """Return what best explains why a member ended."""
    directory = Path(member.directory)
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return f"its folder {directory} is gone"
    # Checked before the log, which could not be written either on a full disk.
    if free < _FULL_BYTES:
        return f"the disk of {directory} is full"
    return end_cause(directory)
