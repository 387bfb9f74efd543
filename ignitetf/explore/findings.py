"""Check this machine and the cluster, and say how to fix what is wrong.

packages, home, ports, certificates; views of the cluster -> **findings** -> doctor

The checks are cheap: metadata of packages, files of the home, four views of the cluster.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

from ignitetf.errors import IgniteTFError
from ignitetf.explore.versions import installed
from ignitetf.home import ignitetf_home
from ignitetf.local.process import total_memory_bytes
from ignitetf.local.state import read_state
from ignitetf.net.client import Client
from ignitetf.net.results import only_value
from ignitetf.node.config import DEFAULT_PARTITION_COUNTS
from ignitetf.node.jars import IGNITE_VERSION, read_lock
from ignitetf.node.memory import format_bytes
from ignitetf.node.ports import is_free
from ignitetf.node.status import node_names, node_status
from ignitetf.settings import DEFAULT_PORT, Settings

__all__ = ["findings"]

_LEAST_MEMORY: Final = 2 << 30
_LEAST_DISK: Final = 2 << 30
_SOON: Final = datetime.timedelta(days=30)
_SKEW_S: Final = 5.0
# Time zones differ by multiples of this.
_ZONE_S: Final = 900.0
# Packages whose metadata require certain versions of each other.
_PAIRED: Final = (
    "tensorflow", "tensorflow-cpu", "keras", "tf-keras", "numpy", "pyarrow", "jax", "torch", "pandas",
    "pyignite", "ray", "grain",
)  # fmt: skip
_COPIES: Final = (
    "SELECT CACHE_NAME, BACKUPS FROM SYS.CACHES WHERE CACHE_TYPE = 'USER' AND"
    " CACHE_MODE = 'PARTITIONED' AND BACKUPS = 0 ORDER BY CACHE_NAME"
)
_LOST: Final = "SELECT COUNT(*) FROM SYS.PARTITION_STATES WHERE STATE = 'LOST'"
# Time since midnight, so that the year and the date format do not matter.
_CLOCK: Final = (
    "SELECT HOUR(CURRENT_TIMESTAMP) * 3600 + MINUTE(CURRENT_TIMESTAMP) * 60"
    " + SECOND(CURRENT_TIMESTAMP)"
)


def findings(settings: Settings, connect: Callable[[], Client]) -> list[dict[str, Any]]:
    """Return the result of each check: `check`, `state` (ok, warning, error), `note`, `hint`.

    Args:
        settings: Settings of the connection; its certificates are checked, too.
        connect: Opens a client; if that fails, the checks of the cluster are skipped.
    """
    rows = [*_packages(), _memory(), _disk(), _jars(), _port(), *_nodes(), *_certificates(settings)]
    try:
        with connect() as client:
            rows += [_clock(client), *_copies(client), _templates(client)]
    except IgniteTFError as error:
        rows.append(_row("cluster", "error", str(error), error.hint or ""))
    return rows


def _row(check: str, state: str, note: str, hint: str = "") -> dict[str, Any]:
    return {"check": check, "state": state, "note": note, "hint": hint}


# The machine


def _packages() -> Iterator[dict[str, Any]]:
    """Yield the pairs of incompatible packages, or one row saying that all are compatible."""
    from packaging.requirements import Requirement

    wrong = []
    for name in _PAIRED:
        for text in _requirements(name):
            needed = Requirement(text)
            if needed.name.lower() not in _PAIRED or not _applies(needed):
                continue
            found = installed(needed.name)
            if found is not None and not needed.specifier.contains(found, prereleases=True):
                wrong.append(
                    (f"{name} {installed(name)}", f"{needed.name}{needed.specifier}", found)
                )
    for owner, wanted, found in wrong:
        note = f"{owner} needs {wanted}, {found} is installed"
        yield _row("packages", "error", note, f"pip install '{wanted}'")
    if not wrong:
        yield _row("packages", "ok", "versions fit each other")


def _requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def _applies(needed: Any) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": ""})


def _memory() -> dict[str, Any]:
    total = total_memory_bytes()
    if total >= _LEAST_MEMORY:
        return _row("memory", "ok", format_bytes(total))
    hint = "start a node with --memory 256m"
    return _row("memory", "warning", f"{format_bytes(total)}, little for a node", hint)


def _disk() -> dict[str, Any]:
    home = ignitetf_home()
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    note = f"{format_bytes(free)} free for {home}"
    if free >= _LEAST_DISK:
        return _row("disk", "ok", note)
    return _row("disk", "warning", note, "IGNITETF_HOME chooses another folder")


def _jars() -> dict[str, Any]:
    folder, lock = ignitetf_home() / "jars" / IGNITE_VERSION, read_lock()
    there = sum((folder / jar.file_name).is_file() for jar in lock)
    if there == len(lock):
        return _row("jars", "ok", f"Ignite {IGNITE_VERSION}, {there} jars")
    note = f"{there} of {len(lock)} jars of Ignite {IGNITE_VERSION} are in {folder}"
    hint = (
        "the first 'ignitetf node start' fetches them; IGNITETF_JARS names a folder that has them"
    )
    return _row("jars", "ok", note, hint)


def _port() -> dict[str, Any]:
    if is_free(DEFAULT_PORT):
        return _row("port", "ok", f"{DEFAULT_PORT} is free")
    ours = [
        name for name in node_names() if f":{DEFAULT_PORT}" in (node_status(name).address or "")
    ]
    if ours:
        return _row("port", "ok", f"{DEFAULT_PORT} is used by node {ours[0]}")
    hint = "if that is not Apache Ignite: ignitetf node start --port 10900"
    return _row("port", "warning", f"{DEFAULT_PORT} is in use by another process", hint)


def _nodes() -> Iterator[dict[str, Any]]:
    """Yield the state of each node that was started on this machine."""
    for name in node_names():
        found = node_status(name)
        note = f"{name}: {found.state}" + (f", {found.cause}" if found.cause else "")
        if found.state in ("running", "starting"):
            yield _row("node", "ok", note)
        else:
            yield _row("node", "error", note, f"see the logs in {found.directory}")


def _certificates(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the period for which the certificates of a connection are valid."""
    now = datetime.datetime.now(datetime.UTC)
    for option, path in (("--ca", settings.ca), ("--cert", settings.cert)):
        if path is None:
            continue
        begins, ends = _validity(Path(path))
        if ends is None or begins is None:
            yield _row("certificate", "error", f"{option} {path} cannot be read")
        elif ends < now or begins > now:
            note = f"{option} {path} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}"
            yield _row("certificate", "error", note, "request a new one from its issuer")
        else:
            state = "warning" if ends - now < _SOON else "ok"
            yield _row("certificate", state, f"{option} {path} is valid until {ends:%Y-%m-%d}")


def _validity(path: Path) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """Return the start and end of the validity of a file's first certificate."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None, None
    return found.not_valid_before_utc, found.not_valid_after_utc


# The cluster


def _clock(client: Client) -> dict[str, Any]:
    """Compare the clocks; an error of whole time zones looks like a different time zone."""
    here = datetime.datetime.now(datetime.UTC)
    there = only_value(client.sql(_CLOCK))
    ours = here.hour * 3600 + here.minute * 60 + here.second + here.microsecond / 1e6
    skew = (float(there) - ours + _ZONE_S / 2) % _ZONE_S - _ZONE_S / 2
    if abs(skew) <= _SKEW_S:
        return _row("clock", "ok", "the node's is this machine's")
    note = f"the node's is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
    return _row("clock", "warning", note, "dates of files in igfs:// are those of writers: use NTP")


def _copies(client: Client) -> Iterator[dict[str, Any]]:
    """Yield whether losing a node would lose rows."""
    lost = only_value(client.sql(_LOST))
    if lost:
        note = f"{lost} partitions have lost all their copies"
        yield _row("copies", "error", note, "start the lost nodes again, or load the data again")
    nodes = len(client.nodes())
    single = [name for name, _ in client.sql(_COPIES).fetchall()]
    if nodes > 1 and single:
        shown = ", ".join(single[:5]) + (f" and {len(single) - 5} more" if len(single) > 5 else "")
        note = f"one copy only: {shown}; rows are lost with their node"
        yield _row("copies", "warning", note, "load them with --backups 1")
    elif not lost:
        yield _row("copies", "ok", "one node" if nodes == 1 else "each row is on two nodes or more")


def _templates(client: Client) -> dict[str, Any]:
    """Return the partition counts a new cache can have; only our own nodes list them."""
    for state in map(read_state, node_names()):
        if state is not None and set(state.addresses) & set(client.settings.addresses):
            counts = sorted({*DEFAULT_PARTITION_COUNTS, *state.options.template_partitions})
            return _row("templates", "ok", f"partitions: {', '.join(map(str, counts))}")
    note = "not known of a cluster that was not started by ignitetf"
    return _row("templates", "ok", note, "'ignitetf load --partitions N' says if one is missing")
