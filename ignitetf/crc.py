"""`crc32`: the CRC-32 of `zlib`, computed with the processor's own instructions if possible.

`crc32(data, value=0)` takes any buffer of bytes without a copy and returns the 32-bit CRC as an
int; `value` is the CRC of the preceding bytes. On the machine of the measurements `zlib` reaches
2-7 GB/s and ISA-L 35-70. With `zlib` the checksum of an `igfs://` chunk takes a third of the time
of reading it, and the fingerprint of arrays takes as long as the `CREATE` of their table.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

__all__ = ["crc32"]
