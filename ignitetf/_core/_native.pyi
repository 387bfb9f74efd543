from collections.abc import Callable
from typing import Any, Literal

from numpy.typing import NDArray
from typing_extensions import Buffer

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
    def left(self) -> tuple[bytes, bytes, int]: ...
    def state(
        self,
    ) -> tuple[int, int, int, float, float, int, float, int, int, int]: ...
