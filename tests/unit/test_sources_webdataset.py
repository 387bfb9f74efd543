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
    assert sorted(source.schema.names) == ["AGE", "IMAGE", "LABEL", "VEC", "WHO", "__KEY__"]
    assert got["key"] == got["AGE"] == list(range(12))
    assert got["IMAGE"] == [image(n) for n in range(12)]
    assert got["__KEY__"] == [f"train/{n:04}".encode() for n in range(12)]
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
    "a cut image": ([("3.png", image(1)[:-20]), ("3.cls", b"1")], "*.png: damaged image"),
    "an empty image": ([("3.jpg", b""), ("3.cls", b"1")], "*.jpg: empty file"),
    "a flipped bit": ([("3.png", image(1)[:45] + b"\0" + image(1)[46:])], "*.png: damaged image"),
    "another mask": ([("3.cls", b"1"), ("3.mask.png", image(1)[:-20])], "*.mask.png: damaged"),
    "another size": (
        [("3.png", image(1)), ("3.json", b'{"width": 3, "height": 4}')],
        "*.png: its annotation is for an image of 3 x 4",
    ),
    "another key": ([("3.cls", b"1"), ("3.json", b'{"__key__": "4"}')], "the other __key__ '4'"),
    "two images": ([("3.png", image(1)), ("3.jpg", b"")], "give the field IMAGE"),
    "a label beside a label": ([("3.cls", b"1"), ("3.json", b'{"LABEL": 2}')], "the field LABEL"),
    "a name twice in JSON": ([("3.json", b'{"a": 1, "a": 2}')], "two values are called 'a'"),
    "names that become one": ([("3.json", b'{"a b": 1, "a_b": 2}')], "are both 'A_B'"),
    "a number beyond doubles": ([("3.json", b'{"a": 1e400}')], "no double holds the number 1e400"),
    "a text beside a text": ([("3.txt", b"x"), ("3.json", b'{"text": "y"}')], "the field TEXT"),
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


def test_images_of_samples_are_checked_as_all_images(tmp_path):
    path = str(tmp_path / "a.tar")
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (4, 3)).save(out, "JPEG", exif=exif)
    note = json.dumps({"__key__": "1", "width": 3, "height": 4, "original_width": 300}).encode()
    tar_of(path, [("1.jpg", out.getvalue()), ("1.json", note), ("2.jpg", out.getvalue())])
    source = open_source("webdataset", path)
    assert everything(source)["IMAGE"] == [out.getvalue()] * 2
    assert sum("EXIF orientation" in text for text in source.notes) == 1
    with pytest.raises(SourceError, match="the limit is 5"):
        open_source("webdataset", path, max_pixels=5)
    noise = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(noise, "JPEG")
    tar_of(path, [("1.jpg", noise.getvalue()[:-300])])
    with pytest.raises(SourceError, match="damaged"):
        open_source("webdataset", path)
    source = open_source("webdataset", path, check_pixels=False)
    assert len(everything(source)["key"]) == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b""])
def test_a_damaged_image_in_a_shard_of_an_export_is_a_bad_record(tmp_path, damage):
    """The shard lists its fields, as an export writes them."""
    from ignitetf.load.sources.webdataset import FIELDS_FILE
    from ignitetf.wire.codes import TypeCode
    from ignitetf.wire.schema import BYTES, Field, field_for

    fields = [Field("IMAGE", TypeCode.BYTE_ARRAY, BYTES), field_for("N", np.dtype(np.int64))]
    noted = {
        "fields": [one.to_json() for one in fields], "files": {"IMAGE": "*"}, "class_names": [],
    }  # fmt: skip
    files = [(FIELDS_FILE, json.dumps(noted).encode())]
    for n in range(6):
        data = damage(image(n)) if n in (2, 3, 5) else image(n)
        files += [(f"{n:010}.png", data), (f"{n:010}.json", json.dumps({"N": n}).encode())]
    path = str(tmp_path / "a.tar")
    tar_of(path, files)
    with pytest.raises(SourceError, match="sample 0000000002: "):
        everything(open_source("webdataset", path))
    source = open_source("webdataset", path, bad_records="skip")
    got = everything(source)
    assert (got["key"], got["N"]) == ([0, 1, 4], [0, 1, 4])
    assert got["IMAGE"] == [image(n) for n in (0, 1, 4)]
    assert len(source.skipped) == 3
    check_resume(source)
    keyed = everything(open_source("webdataset", path, key="N", bad_records="skip"))
    assert keyed["key"] == [0, 1, 4]


def test_names_in_json_follow_the_rule_of_headings(tmp_path):
    inner = json.dumps({"a b": 1, "gr\u00f6\u00dfe": {"x-y": [{"1": 2}]}}).encode()
    tar_of(str(tmp_path / "a.tar"), [("1.json", inner)])
    source = open_source("webdataset", str(tmp_path / "a.tar"))
    got = everything(source)
    assert (got["A_B"], got["GROSSE"]) == ([1], [{"x_y": [{"_1": 2}]}])
    assert "'a b' is a_b, 'gr\u00f6\u00dfe' is grosse, 'x-y' is x_y" in source.notes[-1]


def test_a_value_that_does_not_fit_names_its_shard_and_sample(tmp_path):
    path = str(tmp_path / "a.tar")
    tar_of(path, [(f"{n}.json", b'{"a": 1}') for n in range(120)] + [("x.json", b'{"a": "b"}')])
    with pytest.raises(SourceError, match=r"a\.tar, sample 121: field A") as caught:
        everything(open_source("webdataset", path))
    assert "--bad-records skip" in caught.value.hint
    tar_of(path, [("1.json", b'{"a": 1}'), ("2.json", b'{"a": true}')])
    with pytest.raises(SourceError, match=r"a\.tar: field 'A': types are mixed"):
        open_source("webdataset", path)
