"""Shards of others: samples by their names, whatever the tar file is packed with."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image
from source_helpers import check_resume, everything

from ignitetf.errors import SourceError
from ignitetf.load.sources import open_source


def image(number):
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (number, 0, 0)).save(out, "PNG")
    return out.getvalue()


def shard(path, numbers, mode="w"):
    with tarfile.open(path, mode) as tar:
        for n in numbers:
            array = io.BytesIO()
            np.save(array, np.arange(3.0) + n)
            files = {
                "png": image(n),
                "cls": str(n % 2).encode(),
                "json": json.dumps({"age": n, "who": f"p{n}"}).encode(),
                "vec.npy": array.getvalue(),
            }
            for suffix, data in files.items():
                info = tarfile.TarInfo(f"train/{n:04}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def test_samples_of_any_origin_are_records(tmp_path):
    shard(tmp_path / "a-0.tar", range(5))
    shard(tmp_path / "a-1.tar", range(5, 12), "w:gz")
    source = open_source("webdataset", str(tmp_path / "a-*.tar"))
    got = everything(source)
    assert sorted(source.schema.names) == ["AGE", "IMAGE", "LABEL", "VEC", "WHO"]
    assert got["key"] == got["AGE"] == list(range(12))
    assert got["IMAGE"] == [image(n) for n in range(12)]
    assert got["LABEL"] == [n % 2 for n in range(12)]
    assert all((vec == np.arange(3.0) + n).all() for n, vec in enumerate(got["VEC"]))
    check_resume(source)


def test_a_damaged_shard_is_named(tmp_path):
    shard(tmp_path / "a.tar", range(5))
    data = (tmp_path / "a.tar").read_bytes()
    for name, part in (("cut.tar", data[:3000]), ("text.tar", b"no tar file" * 100)):
        (tmp_path / name).write_bytes(part)
        with pytest.raises(SourceError, match=name) as caught:
            everything(open_source("webdataset", str(tmp_path / name)))
        assert caught.value.hint


def test_files_of_a_sample_that_do_not_follow_one_another_are_no_two_samples(tmp_path):
    path = str(tmp_path / "a.tar")
    tar_of(path, [("1.cls", b"7"), ("2.cls", b"8"), ("1.txt", b"x"), ("2.txt", b"y")])
    for bad_records in ("fail", "skip"):
        with pytest.raises(SourceError, match="sample 1 do not follow one another") as caught:
            everything(open_source("webdataset", path, bad_records=bad_records))
        assert "tar --sort=name" in caught.value.hint
    tar_of(str(tmp_path / "b.tar"), [("1.cls", b"7"), ("2/1.cls", b"8")])
    two = open_source("webdataset", [str(tmp_path / "b.tar"), str(tmp_path / "b.tar")])
    assert everything(two)["LABEL"] == [7, 8, 7, 8]


def tar_of(path, files):
    """A shard of these files; a text is the target of a hard link."""
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.LNKTYPE, data
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data if isinstance(data, bytes) else b""))


BAD_SAMPLES = {
    "two of one name": ([("3.cls", b"1"), ("3.cls", b"2")], "two files *.cls"),
    "a hard link": ([("3.cls", "1.cls")], "is a link"),
    "a class with a name": ([("3.cls", b"cat")], "invalid literal"),
    "a number of Python": ([("3.cls", b"1_5")], "invalid literal"),
    "broken JSON": ([("3.json", b'{"label": ')], "*.json: Expecting"),
    "two images": ([("3.png", image(1)), ("3.jpg", b"")], "give the field IMAGE"),
    "a label beside a label": ([("3.cls", b"1"), ("3.json", b'{"LABEL": 2}')], "the field LABEL"),
    "a text that is not UTF-8": ([("3.txt", b"\xff")], "*.txt: "),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_a_sample_that_cannot_be_taken_as_it_is_is_a_bad_record(tmp_path, name):
    files, reason = BAD_SAMPLES[name]
    path = str(tmp_path / "a.tar")
    tar_of(path, [("1.cls", b"7"), ("._1.cls", b"of macOS"), *files, ("4.cls", b"9")])
    with pytest.raises(SourceError) as caught:
        everything(open_source("webdataset", path))
    assert f"{path}: sample 3: " in caught.value.message
    assert reason in caught.value.message
    assert "--bad-records skip" in caught.value.hint
    source = open_source("webdataset", path, bad_records="skip")
    got = everything(source)
    assert (got["key"], got["LABEL"]) == ([0, 2], [7, 9])
    assert [r.name for r in source.skipped] == [f"{path}: sample 3"]
    check_resume(source)
