"""Write checkpoints in TensorFlow's layout, without TensorFlow."""

import os
import struct
import zlib


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _block(entries):
    """Return a block without shared key prefixes, without and with its trailer."""
    body = b"".join(
        b"\0" + _varint(len(key)) + _varint(len(value)) + key + value for key, value in entries
    )
    body += struct.pack("<II", 0, 1)
    crc = _crc32c(body + b"\0")
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return body, body + b"\0" + struct.pack("<I", masked)


def index_of(*sizes):
    """Return an index whose data files have these sizes, with one tensor in each."""
    header = b"\x08" + _varint(len(sizes)) + b"\x1a\x02\x08\x01"
    entries = [(b"", header)]
    for shard, size in enumerate(sizes):
        value = b"\x08\x01" + (b"\x18" + _varint(shard) if shard else b"")
        entries.append((b"v%05d" % shard, value + b"\x28" + _varint(size)))
    body, data = _block(entries)
    meta, meta_block = _block([])
    meta_at = len(data)
    root_at = meta_at + len(meta_block)
    root, root_block = _block([(b"w", _varint(0) + _varint(len(body)))])
    footer = _varint(meta_at) + _varint(len(meta)) + _varint(root_at) + _varint(len(root))
    magic = struct.pack("<Q", 0xDB4775248B80FB57)
    return data + meta_block + root_block + footer.ljust(40, b"\0") + magic


def save(folder, *steps, size=100_000, shards=1, content=None):
    """Write checkpoints, and a state file that names those with an index, in TensorFlow's order."""
    folder.mkdir(exist_ok=True, parents=True)
    for step in steps:
        for shard in range(shards):
            data = os.urandom(size) if content is None else content[:size].ljust(size, b"\0")
            path = folder / f"ckpt-{step}.data-{shard:05}-of-{shards:05}"
            path.with_suffix(".tempstate1").write_bytes(data)
            path.with_suffix(".tempstate1").rename(path)
        index = folder / f"ckpt-{step}.index"
        index.with_suffix(".tempstate1").write_bytes(index_of(*[size] * shards))
        index.with_suffix(".tempstate1").rename(index)
    names = sorted(
        (p.stem for p in folder.glob("*.index")), key=lambda name: int(name.rpartition("-")[2])
    )
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    lines += [f"all_model_checkpoint_timestamps: {n}.5" for n, _ in enumerate(names)]
    temporary = folder / f"checkpoint.tmp{zlib.crc32(str(steps).encode()):x}"
    temporary.write_text("\n".join(lines) + "\n")
    temporary.rename(folder / "checkpoint")
