"""`crc32`: the CRC-32 of `zlib`, computed by the processor's own instructions where there are any.

`crc32(data, value=0)` takes any buffer of bytes, without a copy, and gives the CRC of 32 bits as an
int; `value` is that of the bytes before. `zlib` does 2-7 GB/s on the machine of the measurements,
ISA-L 35-70: with the former, a checksum of each chunk of `igfs://` takes a third of the time of
reading it, and the fingerprint of arrays as long as the `CREATE` of their table.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

__all__ = ["crc32"]
