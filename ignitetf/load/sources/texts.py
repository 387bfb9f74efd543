"""The bytes of a text file as UTF-8, whatever its encoding.

stream -> **UTF-8, with a mark in place of each wrong byte** -> csvfile, jsonfile

A parser would refuse more than the row with the wrong byte. So the parser gets valid UTF-8: a mark
replaces the byte, and the error can name its row.
"""

from __future__ import annotations

import codecs
import io
from typing import Any, Final

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.location import Stream, reading

__all__ = ["HINT_ENCODING", "NOT_UTF8", "Utf8Stream"]

# A noncharacter: Unicode forbids it in texts that are exchanged.
NOT_UTF8: Final = "\ufdd0"
HINT_ENCODING: Final = (
    "--encoding names the encoding of the file, such as latin-1, cp1252, utf-16 or shift_jis"
)
# First bytes of a file that show UTF-16.
_LOOKED_AT: Final = 4096
# A table has one of them near its beginning.
_TABLE_SIGNS: Final = "\n\r,;\t|{["
_LINE_ENDS: Final = (b"\n", b"\r")
# The longer ones first, as one begins like a shorter one.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NOT_UTF8, error.end


codecs.register_error("ignitetf.mark", _mark)


class Utf8Stream(io.RawIOBase):
    """Reads a stream in pieces, as UTF-8 that ends with a line end, and closes it.

    Attributes:
        last: The last byte so far that is not a line end.
    """

    def __init__(self, stream: Stream, name: str, encoding: str | None = None) -> None:
        """Take a stream.

        Args:
            stream: The file, decompressed.
            name: Its name, for messages.
            encoding: Its encoding; None for UTF-8, or the one of its byte order mark.

        Raises:
            ConfigError: The encoding does not exist.
        """
        super().__init__()
        self._stream = stream
        self._name = name
        self._encoding = "utf-8" if encoding is None else _known_encoding(encoding)
        self._found = encoding is not None
        self._decoder: Any = None
        self._pending = False
        self._in_line = False
        self.last = b""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read about `size` bytes; the UTF-8 text may be longer."""
        while True:
            data, at_end = self._piece(size)
            if self._decoder is None:
                self._begin(data)
            out = self._decoded(data, at_end=at_end)
            if out:
                self._in_line = not out.endswith(_LINE_ENDS)
            if at_end and self._in_line:
                out, self._in_line = out + b"\n", False
            if out or at_end:  # an incomplete character is not the end of the file
                self.last = out[-4096:].rstrip(b"\r\n")[-1:] or self.last
                return out

    def _piece(self, size: int) -> tuple[bytes, bool]:
        """Return the next `size` bytes, or all up to the end, and whether they are the last."""
        with reading(self._name, "fetch or export the file again"):
            data = more = self._stream.read(size)
            while more and len(data) != size:
                data += (more := self._stream.read(size - len(data) if size > 0 else size))
        return data, len(data) != size

    def _begin(self, data: bytes) -> None:
        """Find the encoding by the first bytes, unless it was given."""
        if not self._found:
            marked = next((name for mark, name in _MARKS if data.startswith(mark)), None)
            if marked is None and (order := _order_of_utf16(data[:_LOOKED_AT])) is not None:
                raise SourceError(
                    f"{self._name}: the text looks like UTF-16 without a byte order mark",
                    hint=f"--encoding utf-16-{order}",
                )
            self._encoding = marked or "utf-8"
        self._decoder = codecs.getincrementaldecoder(self._encoding)("ignitetf.mark")

    def _decoded(self, data: bytes, *, at_end: bool) -> bytes:
        if self._encoding == "utf-8" and data.isascii() and not self._pending:
            return data
        with reading(self._name, HINT_ENCODING):
            out: bytes = self._decoder.decode(data, final=at_end).encode("utf-8", "replace")
        self._pending = bool(self._decoder.getstate()[0])
        return out

    def readinto(self, buffer: Any, /) -> int:
        """Fill at most a third of a buffer, because a mark of three bytes replaces one byte."""
        data = self.read(max(1, len(buffer) // 3 - 1))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this stream and the underlying one."""
        try:
            super().close()
        finally:
            self._stream.close()


def _order_of_utf16(data: bytes) -> str | None:
    """Return the byte order of a text that must be UTF-16, `le` or `be`; None for other texts.

    Every line end and every sign of a table has a zero byte in UTF-16, always on the same side. A
    text in another encoding has none, and other data have control characters as UTF-16.
    """
    low, high = data[0::2].count(0), data[1::2].count(0)
    if not low + high:
        return None
    order = "be" if low > high else "le"
    text = data[: len(data) // 2 * 2].decode(f"utf-16-{order}", "replace")
    is_text = all(c >= " " or c in "\t\r\n" for c in text)
    return order if is_text and not set(_TABLE_SIGNS).isdisjoint(text) else None


def _known_encoding(name: str) -> str:
    try:
        found = codecs.lookup(name)
        "".encode(name)  # refuses codecs that are not encodings of texts, such as hex
    except (LookupError, UnicodeError) as error:
        raise ConfigError(f"encoding {name!r} is unknown", hint=HINT_ENCODING) from error
    return found.name
