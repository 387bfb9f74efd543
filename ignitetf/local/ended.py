"""Why an embedded node has ended: for those who find nobody at its address, and for its status."""

from __future__ import annotations

import shutil
from pathlib import Path

from ignitetf.local.logs import failure_cause
from ignitetf.local.state import Member, all_states

__all__ = ["cause_of_end", "ended_at"]

# With less than that Ignite cannot have gone on: it writes 64 MB at once.
_FULL_BYTES = 4 << 20


def ended_at(address: str) -> str | None:
    """What is to be told of the embedded node that was at this address; None if there was none.

    A node that was stopped is not known any more; one that ended by itself is.
    """
    for state in all_states():
        for member in state.members:
            if member.address == address and state.phase == "running" and not member.alive:
                cause = cause_of_end(member)
                return f"node {state.name!r} has ended" + (f": {cause}" if cause else "")
    return None


def cause_of_end(member: Member) -> str:
    """One line that says best why a member ended; empty when nothing tells."""
    directory = Path(member.directory)
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return f"its folder {directory} is gone"
    # Then its log could not be written either.
    if free < _FULL_BYTES:
        return f"the disk of {directory} is full"
    return failure_cause(directory)
