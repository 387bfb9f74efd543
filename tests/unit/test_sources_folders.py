"""Folders and archives of images as others pack them: classes, splits, and what is neither."""

import io
import shutil
import tarfile
import warnings
import zipfile

import fsspec
import numpy as np
import pytest
from PIL import Image
from source_helpers import check_resume, everything

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source


def png(number):
    out = io.BytesIO()
    Image.new("RGB", (5, 4), (number, 7, 9)).save(out, "PNG")
    return out.getvalue()


def tree(root, *names):
    """Make a folder of images of these names, each of its own colour; returns their bytes."""
    found = {}
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
        found[name] = path.read_bytes()
    return found


def rows(source):
    """Class, split and file of each image, by its name."""
    got = everything(source)
    labels = got.get("LABEL", [None] * len(got["NAME"]))
    splits = got.get("SPLIT", [None] * len(got["NAME"]))
    return {
        name.decode(): (None if label is None else source.class_names[label], split, image)
        for name, label, split, image in zip(got["NAME"], labels, splits, got["IMAGE"], strict=True)
    }


PETS = ("cat/1.png", "cat/deep/2.png", "dog/1.png")
SPLIT_PETS = ("train/cat/1.png", "train/dog/1.png", "val/dog/9.png", "test/ant/3.png")


def test_what_systems_add_and_empty_folders_are_no_classes(tmp_path):
    files = tree(tmp_path, *PETS)
    tree(tmp_path, "__MACOSX/cat/._1.png", ".git/x.png", "cat/.hidden.png", "dog/@eaDir/1.png")
    (tmp_path / "bird").mkdir()
    (tmp_path / "Thumbs.db").write_text("x")
    source = open_source("images", tmp_path)
    assert source.class_names == ["cat", "dog"]
    assert rows(source) == {n: (n.split("/")[0], None, d) for n, d in files.items()}
    assert [note for note in source.notes if "bird" in note] == source.notes


@pytest.mark.parametrize("asked", [None, True])
def test_folders_called_after_splits_are_splits(tmp_path, asked):
    files = tree(tmp_path, *SPLIT_PETS)
    (tmp_path / "val" / "cat").mkdir()
    source = open_source("images", tmp_path, split_folders=asked)
    assert (source.class_names, source.split_names) == (
        ["ant", "cat", "dog"],
        ("test", "train", "val"),
    )
    expected = {n: (n.split("/")[1], n.split("/")[0].encode(), d) for n, d in files.items()}
    assert rows(source) == expected
    check_resume(source, max_bytes=1)
    assert any("val/cat" in note for note in source.notes)
    assert any("--no-split-folders" in note for note in source.notes) == (asked is None)
    classes = open_source("images", tmp_path, split_folders=False)
    assert (classes.class_names, classes.split_names) == (["test", "train", "val"], ())
    assert classes.fingerprint() != source.fingerprint()


def test_splits_without_classes_and_with_other_names(tmp_path):
    files = tree(tmp_path, "train/1.png", "test/2.png")
    source = open_source("images", tmp_path)
    assert rows(source) == {n: (None, n.split("/")[0].encode(), d) for n, d in files.items()}
    assert any("no field LABEL" in note for note in source.notes)
    tree(tmp_path, "more/cat/1.png")
    with pytest.raises(SourceError, match="not in class folders"):
        open_source("images", tmp_path, split_folders=True)
    source = open_source("images", tmp_path)  # not all are called after splits
    assert source.class_names == ["more", "test", "train"]
    assert any("--split-folders" in note for note in source.notes)
    tree(tmp_path, "loose.png")
    with pytest.raises(SourceError, match="next to split folders"):
        open_source("images", tmp_path, split_folders=True)
    tree(tmp_path / "flat", "1.png")
    with pytest.raises(ConfigError, match="no folders with images"):
        open_source("images", tmp_path / "flat", split_folders=True)


def test_one_class_that_hides_folders_is_told(tmp_path):
    tree(tmp_path, "pets/cat/1.png", "pets/dog/1.png")
    source = open_source("images", tmp_path)
    assert source.class_names == ["pets"]
    assert any(f"load {tmp_path / 'pets'}" in note for note in source.notes)


def test_a_file_fixes_the_order_of_classes(tmp_path):
    tree(tmp_path / "pets", *PETS)
    names = tmp_path / "names.txt"
    names.write_bytes(b"\xef\xbb\xbfdog\r\nbird\r\ncat\r\n")
    source = open_source("images", tmp_path / "pets", classes=names)
    assert source.class_names == ["dog", "bird", "cat"]
    assert everything(source)["LABEL"] == [2, 2, 0]
    assert any("bird" in note for note in source.notes)
    (tmp_path / "list.csv").write_text("path,label\npets/cat/1.png,cat\npets/dog/1.png,dog\n")
    table = open_source("images", tmp_path / "list.csv", classes=names)
    assert (table.class_names, everything(table)["LABEL"]) == (["dog", "bird", "cat"], [2, 0])
    for text, words in {
        "dog": "folder 'cat' is not one of the 1 classes",
        "dog\n\ncat": "an empty line",
        "dog\ncat\ndog": "'dog' twice",
        "": "no names",
    }.items():
        names.write_text(text)
        with pytest.raises(SourceError, match=words):
            open_source("images", tmp_path / "pets", classes=names)
    names.write_text("cat")
    with pytest.raises(ConfigError, match="no class folders") as caught:
        open_source("images", tmp_path / "pets" / "dog", classes=names)
    assert "--labels" in caught.value.hint


def packed(folder, form, target, prefix):
    """An archive of a folder, as zip programs and tar write it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if form == "zip":
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
            for path in files:
                file.write(path, f"{prefix}{path.relative_to(folder)}")
            file.writestr(f"__MACOSX/{prefix}._x.png", b"of macOS")
    else:
        with tarfile.open(target, form) as file:
            for path in reversed(files):
                file.add(path, f"{prefix}{path.relative_to(folder)}")
    return target


@pytest.mark.parametrize("prefix", ["", "./", "pets/", "./old/pets/"])
@pytest.mark.parametrize(
    ("form", "name"),
    [("zip", "p.zip"), ("w", "p.tar"), ("w:gz", "p.tar.gz"), ("w:bz2", "p.tbz"), ("zip", "noname")],
)
def test_an_archive_loads_as_the_folder_in_it(tmp_path, form, name, prefix):
    tree(tmp_path / "pets", *SPLIT_PETS)
    whole = open_source("images", tmp_path / "pets")
    source = open_source("images", packed(tmp_path / "pets", form, tmp_path / name, prefix))
    assert rows(source) == rows(whole)
    assert (source.class_names, source.split_names) == (whole.class_names, whole.split_names)
    check_resume(source, max_bytes=1)
    assert f"{tmp_path / name}" in source.files.place(0).name


@pytest.mark.parametrize(
    ("written", "packed_as"),
    [("cat/GrXXYYe.png", "cat/Größe.png".encode()), ("cat\\GrXXYYe.png", b"cat\\GrXXYYe.png")],
)
def test_names_in_a_zip_file_are_those_that_were_meant(tmp_path, written, packed_as):
    """macOS writes UTF-8 without saying so, old programs of Windows backslashes."""
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as file:
        file.writestr("dog/1.png", png(1))
        info = zipfile.ZipInfo("x")
        info.filename = written
        file.writestr(info, png(2))
    data = (tmp_path / "p.zip").read_bytes()
    (tmp_path / "p.zip").write_bytes(data.replace(written.encode(), packed_as))
    source = open_source("images", tmp_path / "p.zip")
    name = packed_as.decode().replace("\\", "/")
    assert rows(source) == {name: ("cat", None, png(2)), "dog/1.png": ("dog", None, png(1))}
    assert source.notes == []


def test_urls_of_archives(tmp_path):
    files = tree(tmp_path / "pets", *PETS)
    archive = packed(tmp_path / "pets", "zip", tmp_path / "p.zip", "pets/")
    tar = packed(tmp_path / "pets", "w", tmp_path / "p.tar", "./")
    expected = {n: (n.split("/")[0], None, d) for n, d in files.items()}
    assert rows(open_source("images", f"zip://pets::{archive}")) == expected
    assert rows(open_source("images", f"tar://::{tar}")) == expected
    assert set(rows(open_source("images", f"tar://dog::{tar}"))) == {"1.png"}
    fsspec.filesystem("memory").pipe("/p.zip", archive.read_bytes())
    assert rows(open_source("images", "memory://p.zip")) == expected


def test_a_table_names_images_in_an_archive(tmp_path):
    tree(tmp_path / "pets", *PETS)
    archive = packed(tmp_path / "pets", "zip", tmp_path / "p.zip", "")
    table = tmp_path / "labels.csv"
    table.write_text("path,label\ncat/1.png,c\ndog/1.png,d\n")
    got = everything(open_source("images", archive, labels=table))
    assert (got["NAME"], got["LABEL"]) == ([b"cat/1.png", b"dog/1.png"], [0, 1])
    table.write_text("path,label\ncat/1.png,c\ndog/absent.png,d\n")
    with pytest.raises(SourceError, match=r"absent\.png: no such file"):
        open_source("images", archive, labels=table)


def test_many_threads_read_one_tar_file(tmp_path):
    random = np.random.default_rng(1)
    for number in range(300):
        out = io.BytesIO()
        pixels = random.integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(out, "PNG")
        path = tmp_path / "pets" / f"{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
    archive = packed(tmp_path / "pets", "w:gz", tmp_path / "p.tar.gz", "")
    assert rows(open_source("images", archive)) == rows(open_source("images", tmp_path / "pets"))


def test_damaged_archives_and_images_in_them_are_named(tmp_path):
    tree(tmp_path / "pets", *PETS)
    archive = packed(tmp_path / "pets", "zip", tmp_path / "p.zip", "")
    data = archive.read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[:-40])
    with pytest.raises(SourceError, match=r"cut\.zip"):
        open_source("images", tmp_path / "cut.zip")
    with zipfile.ZipFile(archive) as file:
        at = file.getinfo("cat/1.png").header_offset + 60
    (tmp_path / "bad.zip").write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    source = open_source("images", tmp_path / "bad.zip", bad_records="skip")
    assert set(rows(source)) == {"cat/deep/2.png", "dog/1.png"}
    assert [bad.name for bad in source.skipped] == [f"{tmp_path / 'bad.zip'}/cat/1.png"]
    shutil.rmtree(tmp_path / "pets")
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(SourceError, match="no such folder") as caught:
        open_source("images", tmp_path / "text.zip")
    assert caught.value.hint


def archive_of(path, form, files):
    """An archive whose entries are exactly these, in this order; text is the target of a link."""
    if form == "zip":
        with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of two equal names
            for name, data in files:
                file.writestr(name, data)
        return path
    with tarfile.open(path, form) as file:
        for name, data in files:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
            info.size = 0 if isinstance(data, str) else len(data)
            file.addfile(info, None if isinstance(data, str) else io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["zip", "w", "w:gz"])
@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("a/1.png", "two files in it are called 'a/1.png'"),
        ("./a/1.png", "two files in it are called 'a/1.png'"),
        ("a/1.png/2.png", "a file and a folder in it are called 'a/1.png'"),
        ("../a/1.png", "a file outside of it: ../a/1.png"),
        ("a/../../1.png", "a file outside of it"),
    ],
)
def test_files_of_an_archive_that_hide_others_or_are_outside_are_refused(
    tmp_path, form, second, words
):
    path = archive_of(tmp_path / "p", form, [("a/1.png", png(1)), (second, png(2))])
    with pytest.raises(SourceError, match=words) as caught:
        open_source("images", path)
    assert str(path) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("form", ["zip", "w"])
def test_a_path_from_the_root_is_one_in_the_archive(tmp_path, form):
    path = archive_of(tmp_path / "p", form, [("/a/1.png", png(1)), ("b\u00e9/1.png", png(2))])
    assert {name: row[2] for name, row in rows(open_source("images", path)).items()} == {
        "a/1.png": png(1),
        "b\u00e9/1.png": png(2),
    }


def test_links_in_a_tar_file_are_the_files_they_lead_to(tmp_path):
    files = [("a/1.png", png(1)), ("a/2.png", "1.png"), ("a/3.png", "/etc/hostname")]
    path = archive_of(tmp_path / "p.tar", "w", files)
    source = open_source("images", path, bad_records="skip")
    assert {name: row[2] for name, row in rows(source).items()} == {
        "a/1.png": png(1),
        "a/2.png": png(1),
    }
    assert [bad.name for bad in source.skipped] == [f"{path}/a/3.png"]


@pytest.mark.parametrize("damage", ["cut", "header", "joined"])
def test_a_damaged_tar_file_is_never_a_shorter_one(tmp_path, damage):
    path = archive_of(tmp_path / "p.tar", "w", [(f"a/{n}.png", png(n)) for n in range(4)])
    data = path.read_bytes()
    half = 2 * (512 + -(-len(png(0)) // 512) * 512)
    path.write_bytes(
        {
            "cut": data[:half],
            "header": data[:half] + b"\1" * 512 + data[half + 512 :],
            "joined": data + data,
        }[damage]
    )
    for kind in ("images", "webdataset"):
        with pytest.raises(SourceError, match=r"p\.tar: (it ends|damaged|more data)") as caught:
            everything(open_source(kind, path))
        assert caught.value.hint
