"""Load the four C parts of an installed wheel, in a process that cannot build any.

python tests/helpers/installed_parts.py
"""

import ctypes
import os
import tempfile
from pathlib import Path

# A compiler that fails, and an empty cache folder, so that nothing can be built or found there.
os.environ |= {"CC": "false", "XDG_CACHE_HOME": tempfile.gettempdir() + "/none"}

import ignitetf
from ignitetf import native

folder = Path(ignitetf.__file__).parent
for part in native.PARTS:
    path = native.shared_object(folder / part)
    assert path == (folder / part).with_suffix(".so")
    ctypes.CDLL(str(path))
    print(path)
