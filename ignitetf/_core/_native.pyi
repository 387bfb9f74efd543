from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray
from typing_extensions import Buffer

_Array: TypeAlias = NDArray[Any]

# bytes.c
def bytes_of(page: _Array, starts: _Array, lengths: _Array, out: _Array, /) -> None: ...
def copy_runs(
    out: _Array, at: _Array, page: _Array, starts: _Array, lengths: _Array, /
) -> None: ...

# hash.c
def hash_runs(page: _Array, starts: _Array, lengths: _Array, out: _Array, /) -> None: ...
def hash_rows(rows: _Array, out: _Array, /) -> None: ...
def row_hash_runs(page: _Array, starts: _Array, lengths: _Array, out: _Array, /) -> None: ...
def row_hash_rows(rows: _Array, out: _Array, /) -> None: ...
def both_hashes(rows: _Array, codes: _Array, hashes: _Array, /) -> None: ...
def mix(values: _Array, salt: int, out: _Array, /) -> None: ...
def hash_as(kind: int, /) -> int: ...

# objects.c
def object_starts(page: _Array, count: int, extents: _Array, starts: _Array, /) -> bool: ...

# igfs.c
def connect_igfs(
    handles: object,
    told: Callable[[BaseException], tuple[int, bytes]],
    scheme: str,
    library: str,
    /,
) -> None: ...
def shut_igfs(wait_ms: int, /) -> int: ...

# strings.c
def register_strings(library: str, /) -> int: ...

# layout.c, landing.c, lane.c
class Layout:
    def __init__(
        self,
        columns: NDArray[Any],
        extents: NDArray[Any],
        rows: int,
        plain: bool,
        heap_bytes: int,
        /,
    ) -> None: ...
    def offsets(self) -> list[tuple[int, int, int, int, int]]: ...
    def add_form(
        self,
        type_id: int,
        schema_id: int,
        flags: int,
        columns: NDArray[Any] | None,
        lacking: NDArray[Any] | None,
        /,
    ) -> bool: ...

class Landing:
    def __init__(
        self,
        layout: Layout,
        units: NDArray[Any],
        places: NDArray[Any] | None,
        keys: Buffer | None,
        key_at: NDArray[Any] | None,
        total: int,
        ahead: int,
        group_bytes: int,
        page_rows: int,
        has_more: int,
        first_skip: int,
        next_op: int,
        /,
    ) -> None: ...
    def take(
        self, seconds: float, /
    ) -> tuple[int, int, Buffer, tuple[Buffer | None, ...], bytes] | Literal[False] | None: ...
    def count(self, places: NDArray[Any], /) -> None: ...
    def wake(self) -> None: ...
    def stop(self) -> None: ...

class Lane:
    def __init__(
        self,
        landing: Landing,
        number: int,
        fd: int,
        receive: Callable[[memoryview], int],
        send: Callable[[bytes], object],
        units: NDArray[Any],
        frames: Buffer,
        frame_at: NDArray[Any],
        first_id: int,
        limit_s: float,
        delay_s: float,
        window: int,
        least_window: int,
        most_window: int,
        most_open: int,
        /,
    ) -> None: ...
    def run(self) -> tuple[int, int, int, int, int, bytes]: ...
    def drain(self) -> None: ...
    def left(self) -> tuple[bytes, bytes, bytes, int]: ...
    def state(
        self,
    ) -> tuple[int, int, int, float, float, int, float, int, int, int]: ...
