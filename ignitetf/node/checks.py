"""Checks before a start: free disk space, and agreement with the running node and stored data."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ignitetf.errors import NodeError
from ignitetf.local.state import NodeOptions, NodeState, node_directory, read_store
from ignitetf.node.config import DEFAULT_PARTITION_COUNTS

__all__ = ["check_disk", "check_same", "check_store"]

# Two log segments and the first pages of a new store; an existing store writes one segment.
_NEW_STORE_BYTES = 256 << 20
_STORE_BYTES = 80 << 20
_FILES_BYTES = 16 << 20  # logs of a node in memory


def check_disk(options: NodeOptions, name: str) -> None:
    """Raise NodeError if the disk has no room for the node's files.

    A node that keeps its data on disk terminates as soon as the disk is full.
    """
    need = _FILES_BYTES * options.nodes
    if options.persist:
        need = (_NEW_STORE_BYTES if read_store(name) is None else _STORE_BYTES) * options.nodes
    directory = node_directory(name)
    free = shutil.disk_usage(directory).free
    if free < need:
        raise NodeError(
            f"the disk of {directory} has {free / 1e6:,.0f} MB free, node {name!r} needs"
            f" {need / 1e6:,.0f} MB there",
            hint="make room on that disk, or set IGNITETF_HOME to a folder on another one",
        )


def check_same(
    state: NodeState, given: Mapping[str, object], template_partitions: Sequence[int]
) -> None:
    """Raise NodeError if the options differ from those of the running node."""
    running = asdict(state.options)
    running["memory"] = running["memory_bytes"]
    running["data-center"] = running["data_center"]
    different = [
        f"--{option}"
        for option, value in given.items()
        if value is not None and value != running[option]
    ]
    templates = {*DEFAULT_PARTITION_COUNTS, *state.options.template_partitions}
    if not templates.issuperset(template_partitions):
        different.append("--template-partitions")
    if different:
        raise NodeError(
            f"node {state.name!r} already runs at {','.join(state.addresses)} with another"
            f" {', '.join(different)}",
            hint=f"stop it first (ignitetf node stop --name {state.name}), or give another --name",
        )


def check_store(options: NodeOptions, name: str) -> None:
    """Raise NodeError if the data on disk belong to another kind of node."""
    stored = read_store(name)
    if stored is None:
        return
    other = f"another --name, or remove {node_directory(name)}"
    if not options.persist:
        # An empty node of the same name would look as if the data had been lost.
        raise NodeError(
            f"node {name!r} keeps data on disk, a node without --persist does not read them",
            hint=f"give {'--secure' if stored.secure else '--persist'}, {other}",
        )
    if stored.members != options.nodes:
        raise NodeError(
            f"node {name!r} keeps data of {stored.members} member{'s' if stored.members > 1 else ''}"
            f" on disk, --nodes {options.nodes} cannot read them",
            hint=f"give --nodes {stored.members}, {other}",
        )
    if stored.secure != options.secure:
        kept = "with --secure" if stored.secure else "without --secure"
        raise NodeError(
            f"node {name!r} keeps data on disk that were written {kept}",
            hint=f"start it {kept}, give {other}",
        )
