"""Say where the native core of an installation is, and that TensorFlow's plugin is in it.

python tests/helpers/installed_parts.py
"""

import ctypes

from ignitetf._core import Lane, _native

assert isinstance(Lane, type)
assert ctypes.CDLL(_native.__file__).TF_InitPlugin
print(_native.__file__)
