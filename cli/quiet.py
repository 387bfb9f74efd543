"""Keeps TensorFlow's messages about itself out of the output of our commands.

Only commands that import TensorFlow themselves use it. Scripts that `ignitetf launch` runs, or that
import ignitetf, decide this themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Final

__all__ = ["quiet_tensorflow"]

# Information and warnings of C++, and messages of absl before its initialization.
_CHATTER: Final = re.compile(
    rb"[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] |WARNING: All log messages before absl"
    rb"|To enable the following instructions"
)


def quiet_tensorflow() -> None:
    """Import TensorFlow, if it is installed, without information and warnings about itself.

    `TF_CPP_MIN_LOG_LEVEL` in the environment decides otherwise.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # The code that needs TensorFlow reports the missing package.
    with contextlib.suppress(ImportError), _without_chatter():
        importlib.import_module("tensorflow")
        # Keras and the rest of TensorFlow write to it.
        logging = importlib.import_module("absl.logging")
        logging.set_verbosity(logging.ERROR)


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Suppress output to stderr within the block, also from C++, except errors.

    TensorFlow writes some of its messages during its import, at any level.
    """
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)
            held.seek(0)
            for line in held:
                if not _CHATTER.match(line):
                    os.write(2, line)
