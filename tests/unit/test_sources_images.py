import io
import os
import random
import re
import subprocess
import sys
import threading
import warnings

import numpy as np
import psutil
import pytest
from helpers.paths import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from source_helpers import batch_sizes, check_resume, everything, real_data, same

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.options import partitions_for
from ignitetf.load.sources import images, open_source
from ignitetf.load.sources.base import ordered_map
from ignitetf.load.sources.filelist import read_groups
from ignitetf.load.sources.labels import PATH_HEADINGS
from ignitetf.load.sources.location import locate
from ignitetf.load.sources.pictures import (
    Recipe,
    check_picture,
    decode_cropped,
    decode_picture,
)
from ignitetf.load.sources.workers import Workers
from ignitetf.local.process import identify, kill, wait_gone
from ignitetf.pictures import PictureError, picture_of
from ignitetf.wire.schema import BYTES


def picture(kind="PNG", size=(6, 5), mode="RGB", **options):
    pixels = np.random.RandomState(7).randint(0, 256, (*size, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name in ("dog/b.png", "dog/a.PNG", "cat/deep/er/x.png", "cat/a.jpg", "dog/.hidden.png"):
        path = tmp_path / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture("JPEG" if name.endswith("jpg") else "PNG"))
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("no image")
    return tmp_path / "pets"


def test_class_folders(folder):
    source = open_source("images", folder)
    assert source.schema.names == ("IMAGE", "LABEL", "NAME")
    assert source.schema["IMAGE"].dtype == BYTES
    assert source.class_names == ["cat", "dog"]
    got = everything(source)
    assert got["NAME"] == [b"cat/a.jpg", b"cat/deep/er/x.png", b"dog/a.PNG", b"dog/b.png"]
    assert got["LABEL"] == [0, 0, 1, 1]
    assert got["key"] == [0, 1, 2, 3]
    assert got["IMAGE"] == [(folder / n.decode()).read_bytes() for n in got["NAME"]]
    assert source.rows == 4
    check_resume(source, max_bytes=1)
    check_resume(source, max_bytes=400)


def test_a_flat_folder_has_no_labels(folder):
    source = open_source("images", folder / "dog")
    assert source.schema.names == ("IMAGE", "NAME")
    assert source.class_names is None
    assert everything(source)["NAME"] == [b"a.PNG", b"b.png"]
    assert "no field LABEL" in source.notes[0]
    (told,) = open_source("images", folder).notes  # of the other file alone
    assert "dog/notes.txt" in told


def test_page_and_error_list_the_headings_of_paths(tmp_path):
    table = tmp_path / "list.csv"
    table.write_text("photo,label\na.jpg,1\n", encoding="utf-8")
    with pytest.raises(SourceError) as raised:
        open_source("images", table)
    page = (ROOT / "docs/sources.md").read_text(encoding="utf-8")
    for heading in PATH_HEADINGS:
        assert re.search(rf"\b{heading}\b", raised.value.message)
        assert f"`{heading}`" in page


def test_a_csv_of_path_and_label(folder, tmp_path):
    table = tmp_path / "pets" / "list.csv"
    table.write_text('path,label\ndog/b.png,zebra\n"cat/a.jpg",ant\n\n', encoding="utf-8")
    source = open_source("images", table)
    assert source.class_names == ["ant", "zebra"]
    got = everything(source)
    assert got["NAME"] == [b"dog/b.png", b"cat/a.jpg"]
    assert got["LABEL"] == [1, 0]
    elsewhere = tmp_path / "numbers.csv"
    elsewhere.write_text("dog/b.png,7\ncat/a.jpg,-1\n")
    source = open_source("images", folder, labels=elsewhere)
    assert source.class_names is None
    assert everything(source)["LABEL"] == [7, -1]
    elsewhere.write_text("dog/b.png,7\ncat/a.jpg\n")
    with pytest.raises(SourceError, match="entry 2") as caught:
        open_source("images", folder, labels=elsewhere)
    assert "--bad-records skip" in caught.value.hint
    elsewhere.write_text("dog/b.png,7\ncat/a.jpg\ncat/a.jpg,\ndog/b.png,x,y\ncat/a.jpg,8\n")
    source = open_source("images", folder, labels=elsewhere, bad_records="skip")
    got = everything(source)
    assert (got["NAME"], got["LABEL"]) == ([b"dog/b.png", b"cat/a.jpg"], [7, 8])
    assert "3 entries skipped: entry 2 has 1 columns" in source.notes[0]
    elsewhere.write_text("dog/none.png,7\n")
    with pytest.raises(SourceError, match=r"none\.png: no such file"):
        everything(open_source("images", folder, labels=elsewhere))


def test_decoded_and_resized(folder):
    with Image.open(folder / "dog" / "b.png") as image:
        expected = np.array(image.convert("RGB"))
    got = everything(open_source("images", folder, decode=True))
    assert np.array_equal(got["IMAGE"][3], expected)
    source = open_source("images", folder, resize="8x7", channels=1)
    assert source.schema["IMAGE"].shape == (8, 7, 1)
    assert source.schema["IMAGE"].dtype == np.uint8
    assert np.stack(everything(source)["IMAGE"]).shape == (4, 8, 7, 1)
    assert max(batch_sizes(source, 200)) <= 200
    check_resume(source, max_bytes=130)
    (folder / "dog" / "odd.png").write_bytes(picture(size=(9, 9)))
    with pytest.raises(SourceError, match=r"9 x 9, the first image has 6 x 5.*--resize"):
        everything(open_source("images", folder, decode=True))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_any_mode_decodes_to_the_channels_asked_for(mode):
    out = io.BytesIO()
    image = Image.new("L", (4, 3), 200)
    image = Image.new("I;16", (4, 3), 200) if mode == "I;16" else image.convert(mode)
    image.save(out, "TIFF")
    for channels in (1, 3, 4):
        assert decode_picture(out.getvalue(), channels).shape == (3, 4, channels)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_16_bits_the_upper_ones_are_kept(kind):
    pixels = np.array([[0, 255, 256, 40_000, 65_535]], np.uint16)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    for decoded in (
        decode_picture(out.getvalue(), 3),
        decode_cropped(out.getvalue(), 3, pixels.shape)[0],
    ):
        assert decoded[..., 0].tolist() == decoded[..., 2].tolist() == (pixels >> 8).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_images_of_32_bits_are_not_squeezed_into_8(dtype):
    out = io.BytesIO()
    Image.fromarray(np.array([[1, 300, -5]], dtype)).save(out, "TIFF")
    with pytest.raises(PictureError, match="32 bits"):
        decode_picture(out.getvalue())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format_is_checked_to_its_end(kind):
    data = picture(kind, (40, 50))
    assert check_picture(data) == (40, 50)
    with pytest.raises(PictureError):
        check_picture(data[: len(data) * 2 // 3])


def bomb():
    """A PNG header that promises 60,000 x 60,000 pixels."""
    data = bytearray(picture())
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


BAD = {
    "cut.jpg": (picture("JPEG", (64, 64))[:-400], "damaged image"),
    "text.png": (b"hello", "not an image"),
    "empty.png": (b"", "empty file"),
    "flipped.png": (picture()[:60] + b"\0\1" + picture()[62:], "damaged image"),
    "bomb.png": (bomb(), "pixel"),
    "script.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n", "not an image"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("resize", [None, "4x4"])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bad_image_is_named_or_left_out(folder, name, resize):
    data, words = BAD[name]
    (folder / "cat" / name).write_bytes(data)
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("images", folder, resize=resize))
    assert str(folder / "cat" / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    source = open_source("images", folder, resize=resize, bad_records="skip")
    got = everything(source)
    assert len(got["key"]) == 4
    hole = 1 if name < "deep" else 2
    assert got["key"] == [n for n in range(5) if n != hole]
    assert [record.name for record in source.skipped] == [str(folder / "cat" / name)]
    check_resume(source, max_bytes=1)


def test_refused_folders(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no image") as caught:
        open_source("images", tmp_path / "empty")
    assert caught.value.hint
    with pytest.raises(SourceError, match="no such folder"):
        open_source("images", tmp_path / "absent")
    (folder / "loose.png").write_bytes(picture())
    with pytest.raises(SourceError, match="next to class folders"):
        open_source("images", folder)
    (folder / "cat" / "loop").symlink_to(folder)
    (folder / "loose.png").unlink()
    with pytest.raises(SourceError, match="nested folders"):
        open_source("images", folder)
    for wrong in ("8", "0x9", "8x", "99999x99999", (0, 1)):
        with pytest.raises(ConfigError, match="image size"):
            open_source("images", folder / "dog", resize=wrong)
    with pytest.raises(ConfigError, match="channels"):
        open_source("images", folder / "dog", channels=2)


def test_a_dead_link_is_a_bad_record_and_a_pipe_no_image(folder):
    os.mkfifo(folder / "dog" / "pipe.png")
    whole = everything(open_source("images", folder))["NAME"]
    (folder / "dog" / "dead.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(SourceError, match=r"dead\.png: no such file"):
        everything(open_source("images", folder))
    source = open_source("images", folder, bad_records="skip")
    assert everything(source)["NAME"] == whole
    assert [r.name for r in source.skipped] == [str(folder / "dog" / "dead.png")]


def test_fingerprint_follows_files_and_options(folder):
    first = open_source("images", folder).fingerprint()
    assert open_source("images", folder).fingerprint() == first
    assert open_source("images", folder, resize="4x4").fingerprint() != first
    (folder / "dog" / "c.png").write_bytes(picture())
    assert open_source("images", folder).fingerprint() != first


def test_remote_folder():
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe({"/pets/cat/a.png": picture(), "/pets/dog/b.png": picture()})
    got = everything(open_source("images", "memory://pets"))
    assert got["NAME"] == [b"cat/a.png", b"dog/b.png"]
    assert got["IMAGE"][1] == fs.cat("/pets/dog/b.png")


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"]))
@pytest.mark.filterwarnings("ignore")
def test_damaged_images_raise_picture_errors_only(data, kind):
    raw = bytearray(picture(kind, (9, 9)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for use in (check_picture, decode_picture):
        try:
            result = use(bytes(raw), max_pixels=1_000_000)
        except PictureError as error:
            assert "\n" not in str(error)
        else:
            assert len(result) > 0


def test_cropped_or_padded_images_keep_the_pixels_around_the_centre():
    pixels = np.arange(5 * 4, dtype=np.uint8).reshape(5, 4)

    def cropped(*size):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        found, own = decode_cropped(out.getvalue(), 1, size)
        assert own == (5, 4) and found.shape == (*size, 1)
        return found[..., 0]

    assert cropped(3, 2).tolist() == [[5, 6], [9, 10], [13, 14]]
    padded = cropped(6, 7)
    assert np.array_equal(padded[0:5, 1:5], pixels)
    assert int(padded.sum()) == int(pixels.sum())
    assert cropped(2, 6)[:, 1:5].tolist() == pixels[1:3].tolist()


THREADS_AND_LARGE_IMAGES = """
import io, resource, sys
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from ignitetf.load.sources.pictures import decode_cropped, decode_picture

out = io.BytesIO()
Image.new("RGB", (5000, 4000)).save(out, "JPEG")
uses = [lambda d: decode_picture(d, 3, (50, 40)), lambda d: decode_cropped(d, 3, (50, 40))]
uses[0](out.getvalue())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(6) as pool:
    list(pool.map(lambda i: uses[i % 2](out.getvalue()), range(12)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_images_take_the_memory_of_one_in_any_number_of_threads():
    command = [sys.executable, "-c", THREADS_AND_LARGE_IMAGES]
    grown = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert grown < 100_000, "kilobytes; one image takes 80,000"


def test_groups_are_in_order_and_bounded():
    sizes = [10, 2000, 1, 1, 1, 900, 900, 5]
    groups = []

    def load(group):
        groups.append(group)
        return [number * 2 for number in group]

    got = list(read_groups(1, 8, sizes.__getitem__, load, 1000))
    assert got == [(n, 2 * n) for n in range(1, 8)]
    assert all(len(g) == 1 or sum(sizes[n] for n in g) <= 1000 for g in groups)


@pytest.mark.parametrize("options", [{}, {"decode": True, "channels": 1}, {"resize": "5x4"}])
def test_processes_read_what_threads_read(tmp_path, monkeypatch, options):
    """Good files and bad ones, with their reasons."""
    rng = np.random.default_rng(1)
    for number in range(40):
        pixels = rng.integers(0, 256, (6, 7), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    (tmp_path / "07.png").write_bytes(b"")
    (tmp_path / "11.png").write_bytes((tmp_path / "12.png").read_bytes()[:60])
    found = []
    for many in (1, 10**9):
        monkeypatch.setattr(images, "_MANY", many)
        source = open_source("images", tmp_path, bad_records="skip", **options)
        found.append((everything(source), source.skipped))
        assert same(*(content for content, _ in (found[0], found[-1])))
        assert found[0][1] == found[-1][1] and len(found[0][1]) == 2


def test_a_worker_that_dies_is_replaced_by_the_thread(tmp_path):
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "a.png")
    recipe = Recipe(None, None, 3, 100)
    folder = locate(str(tmp_path))
    with Workers(recipe, 1) as workers:
        first = workers.load_all(folder, ["a.png"])
        for process in workers._all:
            process.kill()
            process.wait()
        assert workers.load_all(folder, ["a.png"]) == first
        assert workers.load_all(folder, ["a.png"]) == first
    assert first == [((tmp_path / "a.png").read_bytes(), "")]


# Without `if __name__ == "__main__":`, as users write them.
LOADER = """
import sys
from ignitetf.load.sources.location import locate
from ignitetf.load.sources.pictures import Recipe
from ignitetf.load.sources.workers import Workers

with Workers(Recipe(None, None, 3, 100), 2) as workers:
    (found,) = workers.load_all(locate(sys.argv[1]), ["a.png"])
    print(len(found[0]), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_workers_end_with_a_program_that_is_killed(tmp_path, end):
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "loader.py").write_text(LOADER)
    command = [sys.executable, tmp_path / "loader.py", tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as loader:
        size = int(loader.stdout.readline())
        workers = [identify(p.pid) for p in psutil.Process(loader.pid).children(recursive=True)]
        getattr(loader, end)()
        left = [worker for worker in workers if not wait_gone(worker, 30)]
        for worker in left:
            kill(worker)
        assert size == (tmp_path / "a.png").stat().st_size
        assert len(workers) >= 2 and not left
        assert not loader.stdout.read()  # the program ran once, not again in each worker


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["L", "RGB", "P", "1", "LA", "I;16"]))
def test_a_png_that_is_taken_is_one_for_pillow_too(data, mode):
    out = io.BytesIO()
    Image.new(mode, (9, 8)).save(out, "PNG")
    assert check_picture(out.getvalue()) == (8, 9)
    raw = bytearray(out.getvalue())
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(len(raw) - 20, len(raw))) :]
    try:
        size = check_picture(bytes(raw))
    except PictureError:
        return
    with Image.open(io.BytesIO(bytes(raw))) as image:
        assert image.size == size[::-1]
        image.verify()


def test_reading_ahead_is_bounded_and_stops_with_the_loop():
    taken = []

    def items():
        for n in range(1000):
            taken.append(n)
            yield n

    results = ordered_map(lambda n: n * n, items(), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    assert len(taken) <= 3 + 4
    results.close()
    assert len(taken) <= 3 + 4
    assert not [t for t in threading.enumerate() if t.name.startswith("ignitetf-source")]


def test_an_error_in_a_thread_reaches_the_reader():
    def fail(n):
        raise SourceError(f"file {n}")

    with pytest.raises(SourceError, match="file 0"):
        list(ordered_map(fail, range(10)))


def test_real_jpegs_are_read_byte_for_byte():
    folder = real_data("voc-bccd") / "JPEGImages"
    source = open_source("images", folder)
    files = sorted(folder.iterdir())
    got = everything(source, max_bytes=1 << 20)
    assert got["NAME"] == [file.name.encode() for file in files]
    assert all(a == f.read_bytes() for a, f in zip(got["IMAGE"], files, strict=True))
    assert same(everything(source, start=300), {k: v[300:] for k, v in got.items()})


def test_every_column_of_a_table_becomes_a_typed_field(folder, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text(
        "id,filepath,class,age,score,taken on,note\n"
        "7,dog/b.png,zebra,3,0.5,2024-02-01,\n"
        "8,cat/a.jpg,ant,,1.5,2024-02-03,é\n"
        "9,dog/a.PNG,ant,12,2.0,2024-02-04,x\n"
    )
    source = open_source("images", folder, labels=table, rename="taken on=day")
    assert source.class_names == ["ant", "zebra"]
    kinds = [source.schema[n].type.name for n in ("ID", "AGE", "SCORE", "DAY", "NOTE")]
    assert kinds == ["LONG", "LONG", "DOUBLE", "DATE", "STRING"]
    got = everything(source)
    assert got["NAME"] == [b"dog/b.png", b"cat/a.jpg", b"dog/a.PNG"]
    assert (got["LABEL"], got["AGE"]) == ([1, 0, 0], [3, None, 12])
    assert (got["ID"], got["NOTE"]) == ([7, 8, 9], [b"", "é".encode(), b"x"])
    assert got["IMAGE"] == [(folder / n.decode()).read_bytes() for n in got["NAME"]]
    check_resume(source, max_bytes=1)
    assert [n for n in source.notes if "1 of 4 images" in n and "cat/deep/er/x.png" in n]
    few = open_source("images", folder, labels=table, columns="age,class")
    assert few.schema.names == ("IMAGE", "LABEL", "NAME", "AGE")
    assert few.fingerprint() != source.fingerprint()
    table.write_text(table.read_text().replace("0.5", "0.25"))
    again = open_source("images", folder, labels=table, rename="taken on=day")
    assert again.fingerprint() != source.fingerprint()


TABLES = {
    "photo,label\ndog/b.png,1\n": (
        {}, "no column is called filepath", "--rename COLUMN=path.*: photo, label"),
    "path,age\ndog/B.png,1\ndog/c.png,2\n": ({}, "no such file.*2 rows name no image", "dog/b.png"),
    "path,label,age\nb,1,3\n": ({}, "entry 1 of .* names it", "there is 'dog/b.png'"),
    "path,label,age\ndog/b.png,,3\n": ({}, "row 2 has no label", "--rename label=OTHER"),
    "path,image\ndog/b.png,x\n": ({}, "image's own field IMAGE", "--rename image=OTHER"),
    "path,age\ndog/b.png,1\n": ({"columns": "aeg"}, "no column 'aeg' to load", "'age'"),
    "path,age,x\ndog/b.png,1,2\n": ({"rename": "agee=A"}, "no column 'agee' to rename", "'age'"),
}  # fmt: skip


@pytest.mark.parametrize("text", TABLES)
def test_what_a_table_does_not_say_is_told_with_a_hint(folder, tmp_path, text):
    options, message, hint = TABLES[text]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises((ConfigError, SourceError), match=message) as caught:
        open_source("images", folder, labels=tmp_path / "t.csv", **options)
    import re

    assert re.search(hint, caught.value.hint), caught.value.hint
    if "no such file" in message:
        skipping = open_source("images", folder, labels=tmp_path / "t.csv", bad_records="skip")
        assert everything(skipping)["key"] == [] and len(skipping.skipped) == 2


@pytest.mark.parametrize(
    ("head", "alike"),
    [
        ("path,label,label", "'label' and 'label'"),
        ("path,label,Label", "'label' and 'Label'"),
        ("path,path,label", "'path' and 'path'"),
        ("path,label,x,X", "'x' and 'X'"),
    ],
)
def test_two_columns_of_one_name_are_refused(folder, tmp_path, head, alike):
    table = tmp_path / "list.csv"
    table.write_text(f"{head}\npets/dog/b.png,1,2{',3' * (head.count(',') - 2)}\n")
    with pytest.raises(SourceError, match=f"have the same name: {alike}") as caught:
        open_source("images", table)
    assert "--rename" in caught.value.hint
    with pytest.raises(
        (ConfigError, SourceError), match=r"columns (are called|have the same name)"
    ):
        open_source("images", table, columns=head.rpartition(",")[2])


def test_a_column_without_a_heading_is_called_after_its_position(folder, tmp_path):
    (tmp_path / "list.csv").write_text("path,label,\npets/dog/b.png,1,7\npets/dog/a.PNG,2,8\n")
    source = open_source("images", tmp_path / "list.csv")
    assert everything(source)["COLUMN_3"] == [7, 8]
    assert any("COLUMN_3" in note for note in source.notes)


def test_labels_that_are_no_classes(folder, tmp_path):
    (tmp_path / "t.tsv").write_text("image\tlabel\ndog/b.png\t0.5\ncat/a.jpg\t-1\n")
    source = open_source("images", folder, labels=tmp_path / "t.tsv")
    assert source.class_names is None
    assert everything(source)["LABEL"] == [0.5, -1.0]


# What stands in place of a number, and what is told of its row.
NO_NUMBERS = {
    "NA": "has no label: 'NA' is a missing value",
    "nan": "has no label: 'nan' is a missing value",
    "?": "label of row {row} is '\\?', while|has the label '\\?', which is not an? \\w+",
    "1_5": "label of row {row} is '1_5', while|has the label '1_5', which is not an? \\w+",
    "1e999": "has the label '1e999', which no double holds",
}


@pytest.mark.parametrize("word", NO_NUMBERS)
@pytest.mark.parametrize("beside", ["", ",x"])
@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("number", ["20.5", "7"])
def test_labels_that_are_numbers_stay_numbers(folder, tmp_path, word, beside, count, number):
    """Whatever one of them is; before, they became classes in the order of their texts."""
    rows = [f"dog/b.png,{number}{beside}\n"] * count
    table = tmp_path / "t.csv"
    heading = f"path,label{',note' if beside else ''}\n"
    table.write_text(heading + "".join(rows) + f"cat/a.jpg,{word}{beside}\n")
    told = NO_NUMBERS[word].format(row=count + (2 if beside else 1))
    with pytest.raises(
        SourceError, match=f"row {count + (2 if beside else 1)} ({told})|{told}"
    ) as caught:
        open_source("images", folder, labels=table)
    assert "bad-records skip" in caught.value.hint
    for options in ({}, {"types": "label:double"}):
        if word in ("?", "1_5") and count == 2 and not options:
            continue
        source = open_source("images", folder, labels=table, bad_records="skip", **options)
        assert source.class_names is None
        assert everything(source)["LABEL"] == [float(number)] * count
        assert any("1 rows skipped" in note for note in source.notes)
    classes = open_source("images", folder, labels=table, types="label:varchar").class_names
    assert classes == sorted([word, number])


def test_texts_are_classes_and_infinite_labels_are_numbers(folder, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("path,label\ndog/b.png,None\ncat/a.jpg,dog\ndog/b.png,3\ncat/a.jpg,cat\n")
    assert open_source("images", folder, labels=table).class_names == ["3", "None", "cat", "dog"]
    table.write_text("path,label\ndog/b.png,-inf\ncat/a.jpg,0.5\n")
    assert everything(open_source("images", folder, labels=table))["LABEL"] == [-np.inf, 0.5]
    table.write_text("path,label\ndog/b.png,5000000000\ncat/a.jpg,1\n")
    source = open_source("images", folder, labels=table)
    assert (source.schema["LABEL"].type.name, source.class_names) == ("LONG", None)
    assert everything(source)["LABEL"] == [5_000_000_000, 1]


def test_a_name_of_two_classes_is_no_label(folder, tmp_path):
    (tmp_path / "classes.txt").write_text("crane\nmaillot\ncrane\n")
    table = tmp_path / "t.csv"
    table.write_text("dog/b.png,crane\n")
    with pytest.raises(SourceError, match="the label 'crane' matches two classes") as caught:
        open_source("images", folder, labels=table)
    assert "numbers" in caught.value.hint
    for label, number in (("maillot", 1), ("2", 2)):
        table.write_text(f"dog/b.png,{label}\n")
        assert everything(open_source("images", folder, labels=table))["LABEL"] == [number]


def turned(orientation, pixels):
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", exif=exif, quality=95, subsampling=0)
    return out.getvalue()


def test_pixels_are_upright_and_files_as_they_are(tmp_path):
    upright = np.zeros((24, 16, 3), np.uint8)
    upright[:8] = (250, 0, 0)
    # Orientation 6: the camera was held so that the picture has to be turned clockwise.
    (tmp_path / "a.jpg").write_bytes(turned(6, np.rot90(upright)))
    (tmp_path / "b.jpg").write_bytes(turned(1, upright))
    shown = np.stack(everything(open_source("images", tmp_path, decode=True))["IMAGE"])
    assert shown.shape == (2, 24, 16, 3)
    assert np.abs(shown.astype(int) - upright).max() < 40
    (tmp_path / "b.jpg").unlink()
    lying = open_source("images", tmp_path, decode=True, orient=False)
    assert lying.schema["IMAGE"].shape == (16, 24, 3)
    assert everything(open_source("images", tmp_path, resize="24x16"))["IMAGE"][0][0, 0, 0] > 200
    source = open_source("images", tmp_path)
    assert everything(source)["IMAGE"] == [(tmp_path / "a.jpg").read_bytes()]
    assert len([n for n in source.notes if "EXIF" in n and "--decode" in n]) == 1


def encoded(image, form, **options):
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def test_every_orientation_of_every_format_is_noticed(tmp_path):
    upright = np.zeros((24, 16, 3), np.uint8)
    upright[:8], upright[:, :5] = (250, 0, 0), (0, 0, 250)
    as_held = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.swapaxes(0, 1), 6: np.rot90(upright), 7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }  # fmt: skip
    file = tmp_path / "a.jpg"
    for orientation, pixels in as_held.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        for form in ("JPEG", "PNG", "WEBP", "TIFF"):
            file.write_bytes(
                encoded(Image.fromarray(np.ascontiguousarray(pixels)), form, exif=exif)
            )
            decoded = everything(open_source("images", tmp_path, decode=True))["IMAGE"][0]
            for shown in (decoded, np.asarray(picture_of(file.read_bytes()))):
                assert shown.shape == upright.shape, (orientation, form)
                assert np.abs(shown.astype(int) - upright).mean() < 15, (orientation, form)
            source = open_source("images", tmp_path)
            everything(source)
            assert any("EXIF" in n for n in source.notes) == (orientation > 1), (orientation, form)


def test_odd_pictures_are_shown_and_damaged_ones_are_none(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (24, 16, 3), dtype=np.uint8)
    rgb = Image.fromarray(colours)
    palette = rgb.convert("P")
    deep = Image.fromarray(np.arange(24 * 16, dtype=np.uint16).reshape(24, 16) * 150)
    files = [
        encoded(rgb.convert("CMYK"), "JPEG"),
        encoded(palette, "PNG", transparency=bytes(range(200))),
        encoded(palette, "GIF", save_all=True, append_images=[palette.rotate(90)]),
        encoded(rgb.convert("LA"), "PNG"),
        encoded(deep, "PNG"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in files:
            assert picture_of(data).size == (16, 24)
            (tmp_path / "a.png").write_bytes(data)
            source = open_source("images", tmp_path, decode=True, depth=8, channels=3)
            assert everything(source)["IMAGE"][0].shape == (24, 16, 3)
    see_through = picture_of(files[1])
    assert np.array_equal(np.asarray(see_through), np.asarray(palette.convert("RGB")))
    chance = random.Random(0)
    for data in files:
        for _ in range(60):
            damaged = bytearray(data[: chance.randrange(len(data))] or data)
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            picture_of(bytes(damaged))  # an image or None, and no error
    assert picture_of(np.zeros((0, 5, 1), np.uint16)) is None


@pytest.mark.parametrize("largest", range(256))
def test_grey_pixels_of_few_levels_are_shown_over_all_brightness(largest):
    pixels = np.arange(largest + 1, dtype=np.uint8).reshape(1, -1, 1)
    shown = np.asarray(picture_of(pixels))
    assert shown.shape == (1, largest + 1, 3) and (np.diff(shown[0, :, 0].astype(int)) > 0).all()
    assert shown.max() == (255 if 0 < largest < 32 else largest)
    colours = np.repeat(pixels, 3, axis=2)
    assert (np.asarray(picture_of(colours)) == colours).all()  # as they are


def test_16_bits_of_grey_are_all_loaded(tmp_path):
    pixels = np.array([[0, 255, 256], [40_000, 65_534, 65_535]], np.uint16)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    source = open_source("images", tmp_path, decode=True)
    assert (source.schema["IMAGE"].dtype, source.schema["IMAGE"].type.name) == ("u2", "INT_ARRAY")
    assert np.array_equal(everything(source)["IMAGE"][0][..., 0], pixels)
    larger = everything(open_source("images", tmp_path, resize="4x6"))["IMAGE"][0]
    assert larger.shape == (4, 6, 1) and larger.max() == 65_535
    small = open_source("images", tmp_path, decode=True, depth=8, channels=1)
    assert np.array_equal(everything(small)["IMAGE"][0][..., 0], pixels >> 8)
    Image.fromarray((pixels >> 8).astype(np.uint8)).save(tmp_path / "b.png")
    for options in ({}, {"channels": 3}):
        with pytest.raises(SourceError, match=r"(8|16) bits.*--depth 8"):
            everything(open_source("images", tmp_path, decode=True, **options))
    for wrong in ({"depth": 12}, {"depth": 16, "channels": 3}):
        with pytest.raises(ConfigError, match="depth"):
            open_source("images", tmp_path, decode=True, **wrong)


def test_names_classes_and_types_of_a_table_are_those_it_gives(folder, tmp_path):
    (folder / "labels.csv").write_text(
        "path,name,label,age,code\ndog/b.png,first,2,3,007\ncat/a.jpg,,0,,x\n"
    )
    (folder / "classes.txt").write_text("ant\nbee\nzebra\n")
    source = open_source("images", folder / "labels.csv", types="age:smallint,code:varchar")
    assert source.class_names == ["ant", "bee", "zebra"]
    got = everything(source)
    assert (got["LABEL"], got["NAME"]) == ([2, 0], [b"first", b""])
    assert (source.schema["AGE"].type.name, got["CODE"]) == ("SHORT", [b"007", b"x"])
    check_resume(source, max_bytes=1)
    (folder / "labels.csv").write_text("path,label\ndog/b.png,bea\n")
    with pytest.raises(SourceError, match="'bea' is not one of the 3 classes") as caught:
        open_source("images", folder / "labels.csv")
    assert "'bee'" in caught.value.hint


def test_classes_that_are_called_like_numbers(folder):
    (folder / "classes.txt").write_text("1\n10\n2\n")
    table = folder / "labels.csv"
    for labels, numbers in ((("10", "2"), [1, 2]), (("0", "2"), [0, 2]), (("1", "2"), [0, 2])):
        table.write_text("path,label\ndog/b.png,{}\ncat/a.jpg,{}\n".format(*labels))
        assert everything(open_source("images", table))["LABEL"] == numbers


def test_partitions_fit_rows_and_bytes(folder):
    def chosen(rows, nbytes, limit=None):
        source = open_source("images", folder)
        source.rows, source.nbytes = rows, nbytes
        return partitions_for(source, limit)

    megabyte = 1 << 20
    assert chosen(300, 10 * megabyte) == 16  # sixteen rows each, or more
    assert chosen(20_000, 100 * megabyte) == 128
    assert chosen(3000, 900 * megabyte) == 64  # large rows: 16 MiB each, or more
    assert chosen(300, 900 * megabyte) == 64
    assert chosen(136, 2000 * megabyte) == 128
    assert chosen(20_000, 2000 * megabyte) == 128
    assert chosen(20_000, 2000 * megabyte, limit=300) == 16
    assert chosen(60_000, 47 * megabyte) == 64
    assert chosen(60_000, 47 * megabyte, limit=100) == 16
    assert chosen(10**7, 10**12) == 1024
    assert chosen(3, 10) == chosen(0, 0) == 16
    assert (chosen(None, None), chosen(None, 100 * megabyte)) == (None, 128)
