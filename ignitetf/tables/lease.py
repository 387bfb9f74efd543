"""The lease of a data set, which lets one load or removal work on it at a time.

load, drop, clear -> **lease** -> catalog

The lease is an entry of the catalog, added atomically, so only one client can hold it. Its holder
renews it every second with a growing number. Clocks of different machines are never compared:

- A client that waits watches the number. If it grows, the holder is alive and the error names it.
  If it has not changed for `EXPIRES_S`, the client takes the lease. It does so at once if the
  holder is a process of this machine that has ended.
- A holder must have renewed within `TRUSTED_S`, half of that, before it sends a request that
  changes the data set (`check`). A holder that was suspended for longer renews first, and stops if
  another client has taken over.

Two gaps remain: a request that was already on its way to the node when its holder was suspended,
and a virtual machine that is paused together with its clock, which only notices at its next
renewal, a second after it resumes.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ignitetf.errors import DataSetBusy, IgniteTFError
from ignitetf.net.client import Client
from ignitetf.net.failures import is_full
from ignitetf.owner import has_ended, machine, started
from ignitetf.tables.catalog import SEPARATOR, catalog
from ignitetf.tables.room import memory_full
from ignitetf.tables.texts import json_text

__all__ = ["Lease", "is_held"]

EXPIRES_S: Final = 20.0
TRUSTED_S: Final = 10.0
RENEWED_S: Final = 1.0
_POLL_S: Final = 0.1
_HURRY_S: Final = 1.0
# The clock of this machine that keeps running while it sleeps.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _entry_name(name: str) -> str:
    return f"{name}{SEPARATOR}lease"


def is_held(client: Client, name: str) -> bool:
    """Return whether this data set has a lease, whether or not its holder is alive."""
    return catalog(client).get(_entry_name(name)) is not None


@dataclass(frozen=True)
class Holder:
    """The holder of a lease; the entry's JSON uses the same names.

    Attributes:
        id: Unique id of this lease.
        work: Purpose of the lease, in words for a client that has to wait.
        host: Name of the machine, for people.
        machine: Identity of the machine since its boot (`owner.machine`).
        pid: Process id.
        started: Start time of the process.
        since: Time of the request for the lease, ISO 8601 in UTC.
        renewals: Number of renewals.
    """

    id: str
    work: str
    host: str
    machine: str
    pid: int
    started: float | None
    since: str
    renewals: int = 0

    @classmethod
    def of_this_process(cls, work: str) -> Holder:
        """Describe this process as the holder of a new lease."""
        return cls(
            id=uuid.uuid4().hex,
            work=work,
            host=platform.node(),
            machine=machine(),
            pid=os.getpid(),
            started=started(),
            since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )

    @classmethod
    def from_text(cls, text: str) -> Holder:
        """Parse the text of `to_text`; a damaged text gives a holder without details."""
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            found = cls(**json.loads(text))
            if isinstance(found.pid, int) and isinstance(found.started, float | None):
                return found
        return cls(
            id="",
            work="load or removal",
            host="an unknown machine",
            machine="",
            pid=0,
            started=None,
            since="an unknown time",
        )

    def to_text(self) -> str:
        """Format the entry of the catalog."""
        return json_text(asdict(self))

    @property
    def has_ended(self) -> bool:
        """True if the holder was a process of this machine that is known to have ended."""
        return self.started is not None and has_ended(self.machine, self.pid, self.started)

    def __str__(self) -> str:
        """Describe the holder for a message."""
        return f"a {self.work} by process {self.pid} on {self.host} since {self.since}"


class Lease:
    """The lease of one data set; a context manager that holds it during the block."""

    def __init__(self, client: Client, name: str, work: str, *, if_room: bool = False) -> None:
        """Prepare a lease without acquiring it.

        Args:
            client: The connection.
            name: Name of the data set.
            work: Purpose of the lease, in words for a client that has to wait.
            if_room: Proceed without a lease if the node has no memory for one and no other client holds
                it, since a removal that frees memory must not need any. No load can make progress
                on such a node either.
        """
        self.client, self.name, self.if_room = client, name, if_room
        self._holder = Holder.of_this_process(work)
        self._text = ""
        self._renewed = 0.0
        self._lost: DataSetBusy | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # Ctrl-C must not wait for a slow node; the lease then expires.
        at_once = kind is not None and not issubclass(kind, Exception)
        self.release(_HURRY_S if at_once else self.client.settings.request_timeout_s)

    def acquire(self) -> None:
        """Take the lease; wait up to `EXPIRES_S` for a renewal by its current holder.

        Raises:
            DataSetBusy: A living process holds it.
            ServerOverloaded: The node has no memory for it.
        """
        try:
            self._wait()
        except DataSetBusy:
            raise
        except BaseException as error:
            # We may hold it already: the answer may be lost, or the wait for it interrupted.
            self.release(_HURRY_S)
            if not isinstance(error, IgniteTFError) or not is_full(error):
                raise
            if (full := memory_full(self.client)) is None:
                raise
            if not self.if_room:
                raise full from error
            self._require_free(error)
            return
        threading.Thread(target=self._renew_often, name="ignitetf-lease", daemon=True).start()

    def _require_free(self, error: IgniteTFError) -> None:
        """Raise DataSetBusy if another client holds the lease; otherwise a removal needs no lease."""
        found = catalog(self.client).get(_entry_name(self.name))
        if found is not None and not Holder.from_text(found).has_ended:
            raise self._busy(found) from error
        # `release` removes this text, as if it were our lease.
        self._text = found or ""

    def _wait(self) -> None:
        seen: str | None = None
        since = 0.0
        while not self._add():
            began = _now()
            found = catalog(self.client).get(_entry_name(self.name))
            if found is None:
                continue
            if seen is None:
                seen, since = found, _now()
            elif found != seen:
                raise self._busy(found)
            if Holder.from_text(found).has_ended or began - since >= EXPIRES_S:
                if self._replace(found):
                    return
                seen = None
            else:
                time.sleep(_POLL_S)

    def check(self) -> None:
        """Check that the lease is still held; called before each request that changes the data set.

        Raises:
            DataSetBusy: Another client has taken over.
            ConnectError: The lease must be renewed, but the cluster does not answer.
        """
        if self._lost is not None:
            raise self._lost
        if _now() - self._renewed >= TRUSTED_S:
            with self._lock:
                if _now() - self._renewed >= TRUSTED_S:
                    self._renew()

    def release(self, limit_s: float) -> None:
        """Release the lease, or let it expire if the cluster does not answer within `limit_s`."""
        self._ended.set()
        # A renewal may be running; it may take as long as any request.
        if self._lost is None and self._lock.acquire(timeout=limit_s):
            try:
                with contextlib.suppress(IgniteTFError):
                    self._remove(limit_s)
            finally:
                self._lock.release()

    def _remove(self, limit_s: float) -> None:
        entry = _entry_name(self.name)
        if not catalog(self.client).remove(entry, self._text, timeout_s=limit_s):
            # A renewal whose answer was lost may have stored a newer text.
            found = catalog(self.client).get(entry)
            if found is not None and self._is_mine(found):
                catalog(self.client).remove(entry, found, timeout_s=limit_s)

    def _renew_often(self) -> None:
        while not self._ended.wait(RENEWED_S):
            # The cluster may be unreachable for a while; `check` decides for how long.
            with contextlib.suppress(IgniteTFError), self._lock:
                if self._lost is not None:
                    return
                if not self._ended.is_set():
                    self._renew()

    def _renew(self) -> None:
        """Renew the lease; raises DataSetBusy if another client has it."""
        if self._lost is not None:
            raise self._lost
        if self._replace(self._text):
            return
        # The stored text may be that of an earlier renewal whose answer was lost.
        found = catalog(self.client).get(_entry_name(self.name))
        if found is not None and self._is_mine(found):
            if self._replace(found):
                return
            found = catalog(self.client).get(_entry_name(self.name))
        self._lost = self._taken(found)
        raise self._lost

    def _is_mine(self, text: str) -> bool:
        return Holder.from_text(text).id == self._holder.id

    def _add(self) -> bool:
        began, text = _now(), self._next()
        done = catalog(self.client).add(_entry_name(self.name), text)
        return self._confirm(done, began, text)

    def _replace(self, old: str) -> bool:
        began, text = _now(), self._next()
        done = catalog(self.client).replace(_entry_name(self.name), old, text)
        return self._confirm(done, began, text)

    def _confirm(self, done: bool, began: float, text: str) -> bool:
        if done:
            # Counted from the time of the request: other clients see the number later.
            self._text, self._renewed = text, began
        return done

    def _next(self) -> str:
        self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
        return self._holder.to_text()

    def _busy(self, found: str) -> DataSetBusy:
        holder = Holder.from_text(found)
        return DataSetBusy(
            f"{self.name!r} is in use: {holder}",
            hint=f"wait for its end; a lease of a killed process expires after {EXPIRES_S:g} s",
            **_fields(self.name, holder),
        )

    def _taken(self, found: str | None) -> DataSetBusy:
        holder = None if found is None else Holder.from_text(found)
        by = f" by {holder}" if holder else ""
        return DataSetBusy(
            f"{self.name!r} was taken over{by}, because this process had stopped for too"
            " long: it writes nothing more",
            hint="the other process owns it now; run 'ignitetf verify' after that has ended",
            **_fields(self.name, holder),
        )


def _fields(name: str, holder: Holder | None) -> dict[str, Any]:
    known = {} if holder is None else asdict(holder)
    return {"cache": name, **{key: known.get(key) for key in ("host", "pid", "since", "work")}}
