"""Damaged files, settings, paths, statements and states: the project's own errors, nothing else."""

import gzip
import io
import json
import pickle
import time
import zipfile

import numpy as np
import pytest
from fuzzing import attempt, chance, count, damage, watched

from ignitetf import sql
from ignitetf.errors import ConfigError, DataChanged, IgniteTFError, SourceError, WireError
from ignitetf.fs import path as paths
from ignitetf.fs.records import Entry, Extent, decode, encode
from ignitetf.load.sources import open_source
from ignitetf.load.sources.frames import BoxError
from ignitetf.load.sources.vocxml import parse_voc
from ignitetf.settings import Settings
from ignitetf.sql import fill, placeholders, split

DATA_ERRORS = (SourceError, ConfigError)


def idx_file(array):
    codes = {"|u1": 8, "|i1": 9, ">i2": 0xB, ">i4": 0xC, ">f4": 0xD, ">f8": 0xE}
    big = array.astype(array.dtype.newbyteorder(">"))
    head = bytes([0, 0, codes[big.dtype.str], big.ndim])
    return head + b"".join(n.to_bytes(4, "big") for n in big.shape) + big.tobytes()


def rows_of(source):
    """All batches of a source: columns of one length, and as many rows as it said."""
    rows = 0
    for batch in source.batches(0, max_bytes=4096):
        assert all(len(c) == len(batch) for c in batch.columns.values())
        rows += len(batch)
    assert source.rows is None or rows <= source.rows
    return rows


def test_idx_files(tmp_path):
    images = idx_file(np.arange(10 * 4 * 3, dtype=np.uint8).reshape(10, 4, 3))
    labels = idx_file(np.arange(10, dtype=np.uint8))
    inputs = count(300)
    with watched("IDX", inputs):
        for number in range(inputs):
            rng = chance(number)
            spoilt = damage(rng, images)
            if rng.random() < 0.3:
                spoilt = damage(rng, gzip.compress(images, 1))
            (tmp_path / "i").write_bytes(spoilt)
            (tmp_path / "l").write_bytes(labels if rng.random() < 0.5 else damage(rng, labels))

            def read():
                return rows_of(open_source("idx", tmp_path / "i", labels=tmp_path / "l"))

            attempt(number, read, DATA_ERRORS)


class Mark:
    """Unpickled, this writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_npz_files_and_no_pickles(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, image=np.zeros((6, 3, 2), np.uint8), label=np.arange(6))
    compressed = io.BytesIO()
    np.savez_compressed(compressed, a=np.asfortranarray(np.ones((6, 3))), n=np.array(["x"] * 6))
    inputs = count(300)
    path, mark = tmp_path / "f.npz", tmp_path / "executed"
    with watched("npz", inputs):
        for number in range(inputs):
            rng = chance(number)
            path.write_bytes(damage(rng, rng.choice([buffer, compressed]).getvalue()))
            attempt(number, lambda: rows_of(open_source("npz", path)), DATA_ERRORS)
    for name in ("f.npy", "f.npz"):
        target = tmp_path / name
        array = np.array([Mark(mark)], object)
        with target.open("wb") as file:
            (np.save if name.endswith("npy") else np.savez)(file, array)
        with pytest.raises(SourceError):
            rows_of(open_source("npz", target))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Mark(mark)))
    with pytest.raises(SourceError):
        open_source("npz", path)
    assert not mark.exists()


VOC = b"""<annotation><filename>a.jpg</filename><size><width>9</width><height>9</height></size>
<object><name>cell</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin>
<xmax>5</xmax><ymax>6</ymax></bndbox></object></annotation>"""


def test_voc_annotations():
    inputs = count(1500)
    with watched("VOC", inputs):
        for number in range(inputs):
            spoilt = damage(chance(number), VOC)
            attempt(number, lambda d=spoilt: parse_voc(d), BoxError)


@pytest.mark.parametrize("head", [
    b'<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx">'
    + b"".join(b'<!ENTITY x%d "%s">' % (i, b"&x%d;" % (i - 1) * 10 if i else b"x") for i in range(12))
    + b"]>",
    b'<!DOCTYPE a [<!ENTITY x11 SYSTEM "file:///etc/hostname">]>',
    b'<!DOCTYPE a [<!ENTITY % p SYSTEM "http://127.0.0.1:1/x"> %p; <!ENTITY x11 "">]>',
    b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd">',
])  # fmt: skip
def test_entities_and_external_references_are_refused(head):
    begin = time.monotonic()
    body = VOC.replace(b"cell", b"&x11;") if b"x11" in head else VOC
    if b"SYSTEM" in head and b"ENTITY" not in head:
        # A reference to a DTD that is not read is harmless; nothing may be fetched.
        assert [o.name for o in parse_voc(head + VOC)] == ["cell"]
    else:
        with pytest.raises(BoxError):
            parse_voc(head + body)
    assert time.monotonic() - begin < 1


def test_settings_files(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    for name in ("ADDRESS", "PROFILE", "TLS", "CA", "USERNAME", "PASSWORD", "PASSWORD_FILE"):
        monkeypatch.delenv(f"IGNITETF_{name}", raising=False)
    path = tmp_path / "profiles" / "p.json"
    values = [
        None,
        True,
        1,
        -1.5,
        "x",
        "",
        [],
        ["h:1"],
        {},
        "127.0.0.1:10800",
        1e999,
        "\0",
        "9" * 400,
        "~no-such-user/x",
    ]
    keys = ["address", "addresses", "username", "password", "tls", "ca", "cert", "key",
            "connect_timeout_s", "request_timeout_s", "tls_insecure", "password_file", "unknown"]  # fmt: skip
    good = json.dumps({"addresses": ["127.0.0.1:10800"], "tls": False}).encode()
    inputs = count(600)
    with watched("settings", inputs):
        for number in range(inputs):
            rng = chance(number)
            if rng.random() < 0.5:
                path.write_bytes(damage(rng, good))
            else:
                chosen = {k: rng.choice(values) for k in rng.sample(keys, rng.randint(0, 4))}
                path.write_text(json.dumps(chosen))

            def read():
                found = Settings.resolve(profile="p")
                return repr(found), found.public()

            attempt(number, read, ConfigError)


def test_igfs_paths():
    alphabet = [
        "/",
        "//",
        ".",
        "..",
        "a",
        "\0",
        "é",
        "\ud800",
        "x" * 300,
        " ",
        "\\",
        "%2f",
        "\n",
        "igfs:",
    ]
    inputs = count(2000)
    with watched("paths", inputs):
        for number in range(inputs):
            rng = chance(number)
            text = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 12)))
            names = attempt(number, lambda t=text: paths.parts(t), OSError)
            if names is None:
                continue
            assert not any(n in ("", ".", "..") or "/" in n or "\0" in n for n in names)
            assert paths.parts(paths.join(names)) == names


def test_records_of_the_file_system():
    entry = Entry(None, 17, (Extent("00ff" * 4, 0, 70000, 65536),), {"sha256": "é" * 9}, ("ab",))
    for value in (entry.to_bytes(), encode({}), encode({"p": "0"})):
        decode(value)
    whole, told = entry.to_bytes(), 0
    inputs = count(1500)
    with watched("records", inputs):
        for number in range(inputs):
            spoilt = damage(chance(number), whole)
            found = attempt(number, lambda d=spoilt: Entry.from_bytes(d), WireError)
            if spoilt != whole and b'"c":' in spoilt:
                # The checksum tells every change, and the size that of one without a checksum.
                assert found is None or found == entry, f"input {number}"
            told += found is None
    assert told > inputs * 0.9


def test_statements():
    text = "\n".join(sql.text_of(name) for name in sql.names())
    words = [
        "'",
        '"',
        ";",
        "--",
        "/*",
        "*/",
        "{name}",
        "{",
        "}",
        "{x",
        "\n",
        "CREATE TABLE T (",
        ")",
        "?",
        "''",
    ]
    inputs = count(600)
    with watched("SQL", inputs):
        for number in range(inputs):
            rng = chance(number)
            if rng.random() < 0.5:
                at = rng.randrange(len(text) - 500)
                spoilt = damage(rng, text[at : at + 500].encode()).decode("utf-8", "replace")
            else:
                spoilt = "".join(rng.choice(words) for _ in range(rng.randint(0, 30)))

            def read(spoilt=spoilt):
                found = list(split(spoilt))
                names = placeholders(spoilt)
                return found, fill(spoilt, **dict.fromkeys(names, "T"))

            attempt(number, read, (ConfigError, SourceError))


def test_states_of_datasets():
    """`IgniteDataset.resume` with any JSON: refused, or a position within the epoch."""
    from ignitetf.read.scan_order import Position, ScanOrder, Shard

    order = ScanOrder((0, 1, 2), (5, 0, 7), 8.0, seed=1)
    good = {"epoch": 1, "chain": [[1, 3], [2, 2]], "rows": 12}
    values = [None, True, -1, 0, 1, 3, 1 << 70, "x", "3", [], [[]], [[1]], [[1, 2]], [[0, 0]], {}, 1.5,
              [[-1, 1]], [[1, -5]], [[1 << 40, 1]], [[1, 1], [2, 1], [3, 1]], float("nan"), 1e400]  # fmt: skip
    inputs = count(500)
    with watched("states", inputs):
        for number in range(inputs):
            rng = chance(number)
            state = {k: rng.choice(values) if rng.random() < 0.5 else v for k, v in good.items()}
            if rng.random() < 0.2:
                state.pop(rng.choice(list(state)))

            def read(state=state):
                position = Position.from_state(state)
                pieces = order.pieces(position.chain, Shard())
                assert all(0 <= p.start <= p.stop <= 12 for p in pieces), pieces
                return pieces

            attempt(number, read, (ConfigError, DataChanged))


def test_errors_have_one_line_and_no_secret(tmp_path):
    with pytest.raises(IgniteTFError) as caught:
        Settings.resolve(address="host:x\ny", password="hunter2", username="u")
    assert "\n" not in caught.value.message and "hunter2" not in str(caught.value)
