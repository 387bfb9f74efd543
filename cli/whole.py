"""A local file that appears, or is replaced, when it is complete.

command -> **a file under a temporary name** -> rename -> path
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["whole"]


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield the path to write to, and move the file to `path` at the end.

    An exception removes what was written. As with a shell's `>`, a link stays one and the file it
    leads to is written, a file keeps its permissions, and a pipe or device is written to.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        if error.filename == str(part):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            part.unlink()
