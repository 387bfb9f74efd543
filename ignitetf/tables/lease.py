"""The lease of a data set: one load, or one command that removes it, at a time.

load, drop, clear -> **lease** -> catalog

The lease is an entry of the catalog that only one client can have put there. Its holder renews
it every second with a number that grows. Nobody compares the clocks of two machines:

- who waits watches the number. One that grew has a living holder, who is named in the error; one
  that stood still for `EXPIRES_S` is taken over, and at once where the holder is a process of this
  machine that has ended;
- who holds it has to have renewed it within `TRUSTED_S`, half of that, before it sends anything
  that changes the data set (`check`). A holder that stood still for longer renews first, and
  stops where somebody else has taken over.

What remains: a request that was on its way to the node when its holder was stopped; and a virtual
machine that is halted together with its clock, which learns of it with its next renewal, a second
after it goes on.
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
from ignitetf.tables.catalog import (
    SEPARATOR,
    add_text,
    json_text,
    read_text,
    remove_text,
    replace_text,
)
from ignitetf.tables.room import memory_full

__all__ = ["Lease", "is_held"]

EXPIRES_S: Final = 20.0
TRUSTED_S: Final = 10.0
RENEWED_S: Final = 1.0
_POLL_S: Final = 0.1
_HURRY_S: Final = 1.0
# Of the clocks of this machine, the one that also goes on while it sleeps.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _entry_name(name: str) -> str:
    return f"{name}{SEPARATOR}lease"


def is_held(client: Client, name: str) -> bool:
    """Whether there is a lease of this data set, be its holder alive or not."""
    return read_text(client, _entry_name(name)) is not None


@dataclass(frozen=True)
class Holder:
    """Who has a lease, and for what: the JSON of its entry, under these names.

    Attributes:
        id: Name of this lease, which no other has.
        work: What it is held for, in words for those who have to wait.
        host: Name of the machine, for people.
        machine: The machine since its start (`owner.machine`).
        pid: Number of the process.
        started: When the process started.
        since: When the lease was asked for, ISO 8601 in UTC.
        renewals: How often it was renewed.
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
        """This process, with a new lease."""
        return cls(
            id=uuid.uuid4().hex,
            work=work,
            host=platform.node(),
            machine=machine(),
            pid=os.getpid(),
            started=started(),
            since=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )

    @classmethod
    def from_text(cls, text: str) -> Holder:
        """What `to_text` wrote."""
        return cls(**json.loads(text))

    def to_text(self) -> str:
        """The entry of the catalog."""
        return json_text(asdict(self))

    @property
    def has_ended(self) -> bool:
        """Whether it is a process of this machine that is known to have ended."""
        return self.started is not None and has_ended(self.machine, self.pid, self.started)

    def __str__(self) -> str:
        """The holder, for a message."""
        return f"a {self.work} by process {self.pid} on {self.host} since {self.since}"


class Lease:
    """The lease of one data set, held for the time of the block as a context manager."""

    def __init__(self, client: Client, name: str, work: str, *, if_room: bool = False) -> None:
        """A lease that is not held yet.

        Args:
            client: The connection.
            name: Name of the data set.
            work: What it is held for, in words for those who have to wait.
            if_room: Go without, unless somebody has it, on a node without memory for the lease:
                what makes room must not need any. No load gets on there meanwhile either.
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
        # Who ends the program does not wait for a node that is slow; the lease expires then.
        at_once = kind is not None and not issubclass(kind, Exception)
        self.release(_HURRY_S if at_once else self.client.settings.request_timeout_s)

    def acquire(self) -> None:
        """Take the lease; waits for `EXPIRES_S` at most, for a sign of life of its holder.

        Raises:
            DataSetBusy: Somebody has it, and lives.
        """
        try:
            self._wait()
        except DataSetBusy:
            raise
        except BaseException as error:
            # The answer that it is ours may have been lost, or the wait for it been cut short.
            self.release(_HURRY_S)
            if not self._may_go_without(error):
                raise
            return
        threading.Thread(target=self._renew_often, name="ignitetf-lease", daemon=True).start()

    def _may_go_without(self, error: BaseException) -> bool:
        """Whether the lease is optional and could not be stored; raises DataSetBusy if it is held."""
        full = isinstance(error, IgniteTFError) and is_full(error)
        if not (self.if_room and full and memory_full(self.client)):
            return False
        found = read_text(self.client, _entry_name(self.name))
        if found is not None and not Holder.from_text(found).has_ended:
            raise self._busy(found) from error
        return True

    def _wait(self) -> None:
        seen: str | None = None
        since = 0.0
        while not self._add():
            began = _now()
            found = read_text(self.client, _entry_name(self.name))
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
        """Make sure that the lease is still held; before each request that changes the data set.

        Raises:
            DataSetBusy: Somebody else has taken over.
            ConnectError: It has to be renewed, and the cluster does not answer.
        """
        if self._lost is not None:
            raise self._lost
        if _now() - self._renewed >= TRUSTED_S:
            with self._lock:
                if _now() - self._renewed >= TRUSTED_S:
                    self._renew()

    def release(self, limit_s: float) -> None:
        """Give the lease back; where the cluster does not answer for so long, it expires."""
        self._ended.set()
        # A renewal may be under way, which has as long as any request.
        if self._lost is None and self._lock.acquire(timeout=limit_s):
            try:
                with contextlib.suppress(IgniteTFError):
                    self._remove(limit_s)
            finally:
                self._lock.release()

    def _remove(self, limit_s: float) -> None:
        entry = _entry_name(self.name)
        if not remove_text(self.client, entry, self._text, timeout_s=limit_s):
            # A renewal whose answer was lost has put a newer text there.
            found = read_text(self.client, entry)
            if found is not None and self._is_mine(found):
                remove_text(self.client, entry, found, timeout_s=limit_s)

    def _renew_often(self) -> None:
        while not self._ended.wait(RENEWED_S):
            # The cluster may be away for a while; `check` decides for how long that may be.
            with contextlib.suppress(IgniteTFError), self._lock:
                if self._lost is not None:
                    return
                if not self._ended.is_set():
                    self._renew()

    def _renew(self) -> None:
        """Renew the lease; raises DataSetBusy where it is somebody else's."""
        if self._lost is not None:
            raise self._lost
        if self._replace(self._text):
            return
        # An earlier renewal whose answer was lost may have been the last.
        found = read_text(self.client, _entry_name(self.name))
        if found is not None and self._is_mine(found):
            if self._replace(found):
                return
            found = read_text(self.client, _entry_name(self.name))
        self._lost = self._taken(found)
        raise self._lost

    def _is_mine(self, text: str) -> bool:
        return Holder.from_text(text).id == self._holder.id

    def _add(self) -> bool:
        began, text = _now(), self._next()
        done = add_text(self.client, _entry_name(self.name), text)
        return self._confirm(done, began, text)

    def _replace(self, old: str) -> bool:
        began, text = _now(), self._next()
        done = replace_text(self.client, _entry_name(self.name), old, text)
        return self._confirm(done, began, text)

    def _confirm(self, done: bool, began: float, text: str) -> bool:
        if done:
            # From when the request was sent: who watches saw the new number after that.
            self._text, self._renewed = text, began
        return done

    def _next(self) -> str:
        self._holder = replace(self._holder, renewals=self._holder.renewals + 1)
        return self._holder.to_text()

    def _busy(self, found: str) -> DataSetBusy:
        holder = Holder.from_text(found)
        return DataSetBusy(
            f"{self.name!r} is in use: {holder}",
            hint=f"wait for that to end; what a killed process leaves is free after {EXPIRES_S:g} s",
            **_fields(self.name, holder),
        )

    def _taken(self, found: str | None) -> DataSetBusy:
        holder = None if found is None else Holder.from_text(found)
        by = f" by {holder}" if holder else ""
        return DataSetBusy(
            f"{self.name!r} was taken over{by}, as this process had stood still:"
            " nothing more is written",
            hint="it is the other's now; look at it with 'ignitetf verify' when that has ended",
            **_fields(self.name, holder),
        )


def _fields(name: str, holder: Holder | None) -> dict[str, Any]:
    known = {} if holder is None else asdict(holder)
    return {"cache": name, **{key: known.get(key) for key in ("host", "pid", "since", "work")}}
