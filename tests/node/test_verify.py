"""`verify` finds every kind of damage, and nothing in sound data."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ignitetf.errors import SchemaError
from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.load.sources.records import records
from ignitetf.pictures import picture_of
from ignitetf.tables.catalog import read_manifest
from ignitetf.ui.pictures import encoded_picture

pytestmark = pytest.mark.node
LAYOUTS = pytest.mark.parametrize("layout", ["rows", "blocks"])


def png(shade):
    out = io.BytesIO()
    Image.new("L", (6, 4), shade).save(out, "PNG")
    return out.getvalue()


def pictures(count=40, damaged=()):
    return [
        {"image": png(i)[:50] if i in damaged else png(i), "label": i % 5} for i in range(count)
    ]


def checks(report):
    return {finding.check for finding in report.findings}


@LAYOUTS
def test_sound_data_have_no_findings(client, cache_name, layout):
    load_dataset(pictures(), cache_name, client=client, partitions=4, layout=layout)
    report = verify(client, cache_name, records(pictures()))
    assert report.ok and report.rows == report.expected_rows == report.images == 40
    manifest = read_manifest(client, cache_name)
    assert report.checksum == report.expected_checksum == report.source_checksum
    assert (report.partition_min, report.partition_max) == (
        min(manifest.partition_rows),
        max(manifest.partition_rows),
    )


@LAYOUTS
def test_undecodable_images_are_named(client, cache_name, layout):
    source = pictures(damaged=(3, 30))
    load_dataset(source, cache_name, client=client, partitions=4, layout=layout)
    report = verify(client, cache_name)
    assert (report.images, report.undecodable, checks(report)) == (40, 2, {"images"})
    told = [finding.found for finding in report.findings]
    assert any("IMAGE of key 3:" in t for t in told) and any("of key 30:" in t for t in told)
    assert verify(client, cache_name, images=False).ok


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n"


def enormous_png():
    """A few bytes that claim to be 12,000 x 12,000 pixels."""
    head = struct.pack(">II5B", 12_000, 12_000, 8, 0, 0, 0, 0)
    out = b"\x89PNG\r\n\x1a\n"
    for name, body in ((b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + name + body
        out += struct.pack(">I", zlib.crc32(name + body))
    return out


def test_images_of_strangers_run_no_program_and_take_no_memory(
    client, cache_name, tmp_path, monkeypatch
):
    """Neither `verify` nor what `ui`, `head` and `preview` show run Ghostscript for an EPS."""
    program, mark = tmp_path / "gs", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    source = [
        {"image": one, "label": i} for i, one in enumerate([png(1), png(2), EPS, enormous_png()])
    ]
    source += pictures(5)
    load_dataset(source, cache_name, client=client, partitions=4)
    report = verify(client, cache_name)
    assert (report.images, report.undecodable) == (9, 2)
    told = " ".join(finding.found for finding in report.findings)
    assert "not an image" in told and "12000 x 12000 pixels" in told
    assert picture_of(EPS) is None
    for bad in (EPS, enormous_png()):
        with pytest.raises(SchemaError):
            encoded_picture(bad, 64)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE {} SET LABEL = 77 WHERE ID = 7", {"checksum"}),
        ("DELETE FROM {} WHERE ID = 7", {"rows", "checksum", "partitions"}),
        ("INSERT INTO {} (ID, LABEL) VALUES (1000, 1)", {"rows", "checksum", "partitions"}),
    ],
)
def test_changes_by_sql_are_found(client, cache_name, statement, found):
    load_dataset(pictures(), cache_name, client=client, partitions=4)
    client.sql(statement.format(cache_name)).close()
    assert checks(verify(client, cache_name)) == found


def test_another_source_is_found(client, cache_name):
    load_dataset(pictures(), cache_name, client=client, partitions=4)
    report = verify(client, cache_name, records(pictures(39)))
    assert checks(report) == {"source"} and report.source_checksum != report.checksum
    assert checks(verify(client, cache_name, records([{"x": 1}]))) == {"source"}


def test_rows_twice_in_blocks_are_duplicates(client, cache_name):
    from ignitetf.wire.blocks import BlockKeys

    load_dataset({"X": np.arange(100)}, cache_name, client=client, partitions=2, layout="blocks")
    used = read_manifest(client, cache_name).options.blocks
    cache = client.cache(cache_name)
    first, free = BlockKeys(2).peek(0, 1), BlockKeys(2, used).peek(0, 1)
    cache.put(int(free[0]), cache.get(int(first[0])))
    report = verify(client, cache_name)
    assert report.duplicates == report.rows - 100 == 50
    assert {"rows", "checksum", "duplicates"} <= checks(report)


def test_a_cache_of_others_is_counted(client, cache_name):
    client.sql(f"CREATE TABLE {cache_name} (ID BIGINT PRIMARY KEY, X INT) WITH "
               f'"CACHE_NAME={cache_name},TEMPLATE=p4"').close()  # fmt: skip
    client.sql(f"INSERT INTO {cache_name} (ID, X) VALUES (1, 2), (3, 4)").close()
    report = verify(client, cache_name)
    assert report.ok and (report.rows, report.expected_rows) == (2, None)


def test_real_images_decode(client, cache_name, voc_dir):
    source = open_source("voc", str(voc_dir))
    load_dataset(source, cache_name, client=client, partitions=4)
    report = verify(client, cache_name, source)
    assert report.ok and report.images == 364
