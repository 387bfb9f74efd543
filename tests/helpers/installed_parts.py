"""Loads the four parts in C of an installed wheel, in a process that can build none.

python tests/helpers/installed_parts.py
"""

import ctypes
import os
import tempfile
from pathlib import Path

# A compiler that fails, and a cache folder with nothing in it.
os.environ |= {"CC": "false", "XDG_CACHE_HOME": tempfile.gettempdir() + "/none"}

import ignitetf
from ignitetf import native

folder = Path(ignitetf.__file__).parent
for part in native.PARTS:
    path = native.shared_object(folder / part)
    assert path == (folder / part).with_suffix(".so")
    ctypes.CDLL(str(path))
    print(path)
