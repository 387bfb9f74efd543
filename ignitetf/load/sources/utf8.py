"""A text stream that is guaranteed to be UTF-8 and to end with a line end.

file -> **valid UTF-8** -> CSV parser

The parser loses or refuses a whole block because of one bad byte. With a marker in its place, the
row that contains it can be named. The line end shows whether the last quote was closed: if not, it
becomes a part of the last value.
"""

from __future__ import annotations

import codecs
import io
from typing import Any

from ignitetf.errors import SourceError
from ignitetf.load.sources.location import Stream, reading

__all__ = ["NOT_UTF8", "Utf8Stream"]

# A noncharacter: Unicode forbids it in texts that are exchanged.
NOT_UTF8 = "\ufdd0"
_LINE_ENDS = (b"\n", b"\r")


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NOT_UTF8, error.end


codecs.register_error("ignitetf.mark", _mark)


class Utf8Stream(io.RawIOBase):
    """Reads a stream in pieces and closes it.

    Attributes:
        last: The last byte so far that is not a line end.
    """

    def __init__(self, stream: Stream, name: str) -> None:
        super().__init__()
        self._stream = stream
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignitetf.mark")
        self._pending = False
        self._begun = False
        self._in_line = False
        self.last = b""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read about `size` bytes: markers are longer than what they replace."""
        data = self._piece(size)
        if not self._begun:
            self._begun = True
            if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise SourceError(
                    f"{self._name}: the text is UTF-16, expected UTF-8",
                    hint="iconv -f UTF-16 -t UTF-8 FILE > NEW",
                )
        self.last = data[-4096:].rstrip(b"\r\n")[-1:] or self.last
        if data and data.isascii() and not self._pending:
            return data
        out = self._decoder.decode(data, final=not data).encode()
        self._pending = bool(self._decoder.getstate()[0])
        # An incomplete character alone is not the end of the file.
        return out if out or not data else self.read(size)

    def _piece(self, size: int) -> bytes:
        """Return the next `size` bytes, or all up to the end of the file and its line end."""
        with reading(self._name, "fetch or export the file again"):
            data = more = self._stream.read(size)
            while more and len(data) != size:
                data += (more := self._stream.read(size - len(data) if size > 0 else size))
        if len(data) != size and (data or self._in_line) and not data.endswith(_LINE_ENDS):
            data += b"\n"
        self._in_line = bool(data) and not data.endswith(_LINE_ENDS)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Fill a third of a buffer at most, because a marker takes three bytes in place of one."""
        data = self.read(max(1, len(buffer) // 3))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close both."""
        try:
            super().close()
        finally:
            self._stream.close()
