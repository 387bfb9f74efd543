"""`crc32`: the CRC-32 of `zlib`, computed by the processor's own instructions where there are any.

`zlib` does 2-4 GB/s on the machine of the measurements, ISA-L 70: with the former, a checksum of
each chunk takes a third of the time of reading it.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this processor
    from zlib import crc32

__all__ = ["crc32"]
