"""The native core; _build/compiling.py compiles it, and all else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).parent / "_build"))
from compiling import NAME, BuildCore, headers, sources

setup(
    ext_modules=[Extension(NAME, sources(), depends=headers(), py_limited_api=True)],
    cmdclass={"build_ext": BuildCore},
    # The buffer protocol is in the stable ABI from Python 3.11 on.
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
