import io
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from source_helpers import check_resume, everything, real_data

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source
from ignitetf.load.sources.frames import BoxError
from ignitetf.load.sources.vocxml import main_object, parse_voc
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Struct


def note(*objects):
    """An annotation with objects (name, xmin, ymin, xmax, ymax)."""
    body = "".join(
        f"<object><name>{name}</name><difficult>1</difficult><bndbox><xmin>{a}</xmin>"
        f"<ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, a, b, c, d in objects
    )
    return f"<annotation><size><width>40</width></size>{body}</annotation>".encode()


def jpeg(width=40, height=30):
    out = io.BytesIO()
    pixels = np.random.RandomState(width).randint(0, 256, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    notes = {
        "a": note(("dog", 1, 2, 10, 20), ("cat", 0, 0, 40, 30)),
        "b": note(("cat", 3, 3, 3, 3)),
        "c": note(("ant", 1.5, 2, 30.25, 29), ("dog", 1, 1, 2, 2), ("dog", 5, 5, 6, 6)),
    }
    for name, data in notes.items():
        (tmp_path / "Annotations" / f"{name}.xml").write_bytes(data)
        (tmp_path / "JPEGImages" / f"{name}.jpg").write_bytes(jpeg())
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("c\na\n")
    (tmp_path / "ImageSets" / "Main" / "dog_val.txt").write_text("c  1\nb -1\na  1\n")
    return tmp_path


def test_images_and_annotations(folder):
    source = open_source("voc", folder)
    assert source.class_names == ["background", "ant", "cat", "dog"]
    assert source.schema["BOXES"].shape == (None, 4)
    assert source.schema["BOXES"].type == TypeCode.FLOAT_ARRAY
    got = everything(source)
    assert got["key"] == [0, 1, 2]
    assert got["NAME"] == [b"a", b"b", b"c"]
    assert got["LABEL"] == [2, 2, 1]
    assert got["IMAGE"] == [(folder / f"JPEGImages/{n}.jpg").read_bytes() for n in "abc"]
    assert got["WIDTH"] == [40] * 3
    assert got["HEIGHT"] == [30] * 3
    assert [got[c][2] for c in ("XMIN", "YMIN", "XMAX", "YMAX")] == [1.5, 2, 30.25, 29]
    assert got["BOXES"][0].reshape(-1, 4).tolist() == [[1, 2, 10, 20], [0, 0, 40, 30]]
    assert got["BOX_LABELS"][2].tolist() == [1, 3, 3]
    assert list(source.parts) == ["images", "annotations"]
    notes = source.parts["annotations"]
    assert notes.schema.affinity_key == "IMAGE_ID"
    assert [f.name for f in notes.schema.key.fields] == ["IMAGE_ID", "N"]
    batch = next(notes.batches())
    keys = {name: column.values.tolist() for name, column in batch.key.fields.items()}
    assert keys == {"IMAGE_ID": [0, 0, 1, 2, 2, 2], "N": [0, 1, 0, 0, 1, 2]}
    assert batch.columns["CLASS"].to_bytes() == [b"dog", b"cat", b"cat", b"ant", b"dog", b"dog"]
    assert batch.columns["DIFFICULT"].values.tolist() == [1] * 6
    assert batch.columns["XMAX"].values.tolist() == [10, 40, 3, 30.25, 2, 6]


def test_image_sets_choose_and_order(folder):
    assert everything(open_source("voc", folder, image_set="train"))["NAME"] == [b"c", b"a"]
    assert everything(open_source("voc", folder, image_set="dog_val"))["NAME"] == [b"c", b"a"]
    with pytest.raises(SourceError, match="no image set 'dev'"):
        open_source("voc", folder, image_set="dev")


def test_both_tables_resume(folder):
    source = open_source("voc", folder)
    check_resume(source, max_bytes=1)
    notes = source.parts["annotations"]

    def rows(start):
        out = []
        for batch in notes.batches(start, max_bytes=64):
            columns = batch.key.fields
            out += zip(
                columns["IMAGE_ID"].values.tolist(),
                columns["N"].values.tolist(),
                batch.columns["CLASS"].to_bytes(),
                strict=True,
            )
        return out

    whole = rows(0)
    assert len(whole) == 6
    for start in range(8):
        assert rows(start) == whole[start:]


def test_decoded_images_are_cropped_or_padded(folder):
    (folder / "JPEGImages" / "b.jpg").write_bytes(jpeg(20, 50))
    source = open_source("voc", folder, decode="32x32")
    got = everything(source)
    assert source.schema["IMAGE"].shape == (32, 32, 3)
    with Image.open(folder / "JPEGImages" / "a.jpg") as image:
        pixels = np.array(image)
    assert np.array_equal(got["IMAGE"][0][1:31], pixels[:, 4:36])
    assert not got["IMAGE"][1][:, :6].any()
    assert (got["WIDTH"][1], got["HEIGHT"][1]) == (20, 50)
    assert got["XMAX"][0] == 40


def write(path, data):
    path.write_bytes(data)


BAD = {
    "object without box": (
        ("Annotations", "b.xml", b"<a><object><name>cat</name></object></a>"),
        "has no box",
    ),
    "outside": (("Annotations", "b.xml", note(("cat", 5, 5, 41.5, 9))), "outside the image"),
    "negative": (("Annotations", "b.xml", note(("cat", -2, 5, 4, 9))), "outside the image"),
    "turned": (("Annotations", "b.xml", note(("cat", 9, 5, 4, 9))), "is reversed"),
    "no number": (("Annotations", "b.xml", note(("cat", "x", 5, 4, 9))), "expected a number"),
    "nan": (("Annotations", "b.xml", note(("cat", "nan", 5, 4, 9))), "expected a number"),
    "no name": (("Annotations", "b.xml", note(("", 1, 5, 4, 9))), "without name"),
    "cut": (("Annotations", "b.xml", note(("cat", 1, 1, 2, 2))[:-9]), "damaged XML"),
    "entities": (
        (
            "Annotations",
            "b.xml",
            b'<!DOCTYPE a [<!ENTITY x "y">]><a><object><name>&x;</name></object></a>',
        ),
        "declares entities",
    ),
    "other xml": (("Annotations", "b.xml", b"<html><body/></html>"), "found <html>"),
    "empty xml": (("Annotations", "b.xml", b""), "damaged XML"),
    "a number of Python": (
        ("Annotations", "b.xml", note(("cat", "1_5", 5, 4, 9))),
        "expected a number",
    ),
    "another size": (
        (
            "Annotations",
            "b.xml",
            note(("cat", 1, 1, 2, 2)).replace(
                b"<width>40</width>", b"<width>80</width><height>30</height>"
            ),
        ),
        "annotation is for an image of 80 x 30",
    ),
    "two boxes": (
        (
            "Annotations",
            "b.xml",
            note(("cat", 1, 1, 2, 2)).replace(b"<bndbox>", b"<bndbox/><bndbox>"),
        ),
        "<object> has 2 parts <bndbox>",
    ),
    "two corners": (
        (
            "Annotations",
            "b.xml",
            note(("cat", 1, 1, 2, 2)).replace(b"<xmin>", b"<xmin>3</xmin><xmin>"),
        ),
        "<bndbox> has 2 parts <xmin>",
    ),
    "two names": (
        ("Annotations", "b.xml", note(("cat</name><name>dog", 1, 1, 2, 2))),
        "parts <name>",
    ),
    "two sizes": (
        ("Annotations", "b.xml", note(("cat", 1, 1, 2, 2)).replace(b"<size>", b"<size/><size>")),
        "has 2 parts <size>",
    ),
    "corrupt jpeg": (("JPEGImages", "b.jpg", jpeg()[:-300]), "damaged image"),
    "no jpeg": (("JPEGImages", "b.jpg", None), "image file is missing"),
    "no xml": (("Annotations", "b.xml", None), "annotation file is missing"),
}


def turned(orientation, width=40, height=30):
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "JPEG", exif=exif)
    return out.getvalue()


# Orientation in EXIF, size of a file of 40 x 30 in the XML, and what is told; None if boxes are right.
FRAMES = [
    (1, (40, 30), None), (1, (30, 40), "image of 30 x 40"), (1, None, None), (1, (0, 0), None),
    (6, (40, 30), None), (6, (30, 40), "boxes refer to the upright image of 30 x 40"),
    (6, None, "does not say"), (6, (0, 0), "does not say"), (8, (80, 60), "image of 80 x 60"),
    (3, (40, 30), "does not say"), (2, (30, 40), "image of 30 x 40"), (5, (40, 30), None),
]  # fmt: skip


@pytest.mark.parametrize(("orientation", "size", "says"), FRAMES)
@pytest.mark.parametrize("decode", [None, "16x16"])
@pytest.mark.parametrize("part", ["images", "annotations"])
def test_boxes_are_in_the_frame_of_the_stored_pixels(folder, orientation, size, says, decode, part):
    """Or the pair is bad: tools differ in whether they turn an image before boxes are drawn."""
    (folder / "JPEGImages" / "b.jpg").write_bytes(turned(orientation))
    sides = "" if size is None else "<width>{}</width><height>{}</height>".format(*size)
    xml = note(("cat", 1, 2, 3, 4)).replace(b"<width>40</width>", sides.encode())
    (folder / "Annotations" / "b.xml").write_bytes(xml)
    source = open_source("voc", folder, decode=decode, bad_records="skip").parts[part]
    rows = sum(len(batch) for batch in source.batches())
    assert [r.name for r in source.skipped] == (
        [] if says is None else [str(folder / "Annotations" / "b.xml")]
    )
    assert says is None or says in source.skipped[0].reason
    assert rows == {"images": 3, "annotations": 6}[part] - (says is not None)


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("decode", [None, "16x16"])
def test_a_bad_pair_is_named_or_left_out_of_both_tables(folder, case, decode):
    (where, name, data), words = BAD[case]
    path = folder / where / name
    path.unlink() if data is None else path.write_bytes(data)
    source = open_source("voc", folder, decode=decode)
    for part in source.parts.values():
        with pytest.raises(SourceError, match=words) as caught:
            list(part.batches())
        assert str(path.with_suffix("")) in str(caught.value)
        assert "\n" not in str(caught.value)
    for first in ("images", "annotations"):
        source = open_source("voc", folder, decode=decode, bad_records="skip")
        parts = dict(sorted(source.parts.items(), key=lambda item: item[0] != first))
        ids = {}
        for part_name, part in parts.items():
            (batch,) = part.batches()
            key = batch.key
            key = (key.fields["IMAGE_ID"] if isinstance(key, Struct) else key).values
            ids[part_name] = sorted(set(key.tolist()))
            assert len(part.skipped) == 1
            assert words.split()[-1] in part.skipped[0].reason
        assert ids == {"images": [0, 2], "annotations": [0, 2]}


def sized(xml, width=40, height=30):
    """An annotation that says the size of its image."""
    size = f"<width>{width}</width><height>{height}</height>"
    return xml.replace(b"<width>40</width>", size.encode())


def test_an_image_without_objects_is_a_row_without_boxes(folder):
    write(folder / "Annotations" / "b.xml", sized(note()))
    source = open_source("voc", folder)
    got = everything(source)
    assert [len(labels) for labels in got["BOX_LABELS"]] == [2, 0, 3]
    assert got["LABEL"] == [2, 0, 1] and source.class_names[0] == "background"
    assert [got[c][1] for c in ("XMIN", "YMIN", "XMAX", "YMAX")] == [0] * 4
    assert any("1 images have no objects" in text for text in source.notes)
    (batch,) = source.parts["annotations"].batches()
    assert batch.key.fields["IMAGE_ID"].values.tolist() == [0, 0, 2, 2, 2]
    check_resume(source, max_bytes=1)
    write(folder / "JPEGImages" / "b.jpg", turned(6))  # no box could be in another frame
    for size in ((40, 30), (30, 40)):
        write(folder / "Annotations" / "b.xml", sized(note(), *size))
        source = open_source("voc", folder)
        assert len(everything(source)["key"]) == 3
        assert any("b has an EXIF orientation" in text for text in source.notes)
    write(folder / "Annotations" / "b.xml", sized(note(), 80, 30))
    with pytest.raises(SourceError, match="for an image of 80 x 30"):
        everything(open_source("voc", folder))


def test_a_box_a_pixel_outside_is_clipped_and_counted_in_both_tables(folder):
    write(folder / "Annotations" / "b.xml", note(("cat", -1, 0, 41, 30.5), ("dog", 3, 3, 3, 3)))
    for first in ("images", "annotations"):
        source = open_source("voc", folder)
        parts = dict(sorted(source.parts.items(), key=lambda item: item[0] != first))
        found = {name: [*part.batches()] for name, part in parts.items()}
        boxes = np.array([[0, 0, 40, 30], [3, 3, 3, 3]], np.float32)
        (images,), (objects,) = found["images"], found["annotations"]
        assert np.array_equal(images.columns["BOXES"].values.reshape(-1, 4)[2:4], boxes)
        corners = [objects.columns[c].values[2:4] for c in ("XMIN", "YMIN", "XMAX", "YMAX")]
        assert np.array_equal(np.stack(corners, 1), boxes)
        assert any("1 boxes were outside" in text for text in source.notes)
        assert any("1 boxes are one pixel wide or high" in text for text in source.notes)


def test_what_is_not_loaded_of_objects_is_told(folder):
    xml = note(("cat", 1, 2, 3, 4))
    more = b"<pose>Left</pose><occluded>0</occluded><part><name>head</name></part></object>"
    write(folder / "Annotations" / "b.xml", xml.replace(b"</object>", more))
    assert "not loaded of the objects: part, pose" in open_source("voc", folder).notes


def pairs_of(source):
    """Name (its last part), boxes and label names of each image."""
    got = everything(source)
    return {
        name.decode().rpartition("/")[2]: (
            boxes.reshape(-1, 4).tolist(), [source.class_names[n] for n in labels], image,
        )
        for name, boxes, labels, image in zip(
            got["NAME"], got["BOXES"], got["BOX_LABELS"], got["IMAGE"], strict=True
        )
    }  # fmt: skip


LAYOUTS = {
    "labelImg": ("", ""),
    "images and annotations": ("images", "annotations"),
    "Oxford pets": ("images", "annotations/xmls"),
    "below a folder": ("photos", "photos"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("archive", [False, True])
def test_pairs_of_other_tools_are_those_of_voc(folder, tmp_path_factory, layout, archive):
    root = tmp_path_factory.mktemp("other") / "data"
    for where, old in zip(LAYOUTS[layout], ("JPEGImages", "Annotations"), strict=True):
        shutil.copytree(folder / old, root / where, dirs_exist_ok=True)
    (root / "classes.txt").write_text("dog\n")
    if archive:
        shutil.make_archive(str(root), "zip", root)
        root = root.with_suffix(".zip")
    assert pairs_of(open_source("voc", root)) == pairs_of(open_source("voc", folder))


def test_folders_of_roboflow_are_splits(folder, tmp_path_factory):
    root = tmp_path_factory.mktemp("roboflow")
    for split, stem in (("train", "a"), ("train", "b"), ("valid", "c")):
        (root / split).mkdir(exist_ok=True)
        shutil.copy(folder / "JPEGImages" / f"{stem}.jpg", root / split)
        shutil.copy(folder / "Annotations" / f"{stem}.xml", root / split)
    (root / "README.roboflow.txt").write_text("about")
    source = open_source("voc", root)
    assert source.split_names == ("train", "valid")
    got = everything(source)
    assert got["SPLIT"] == [b"train", b"train", b"valid"]
    assert got["NAME"] == [b"train/a", b"train/b", b"valid/c"]
    assert pairs_of(source) == pairs_of(open_source("voc", folder))
    plain = open_source("voc", root, split_folders=False)
    assert (plain.split_names, "SPLIT" in plain.schema.names) == ((), False)
    (root / "valid" / "c.xml").unlink()
    with pytest.raises(SourceError, match=r"valid/c: its annotation file is missing"):
        everything(open_source("voc", root))


def test_a_file_fixes_the_order_of_classes(folder):
    (folder / "names.txt").write_text("dog\ncat\nant\n")
    source = open_source("voc", folder, classes=folder / "names.txt")
    assert source.class_names == ["background", "dog", "cat", "ant"]
    assert everything(source)["LABEL"] == [2, 2, 3]


def test_annotations_in_any_namespace_and_encoding(folder):
    plain = note(("cat", 1, 2, 3, 4)).decode()
    spaced = plain.replace("<annotation>", '<annotation xmlns="http://example.org/voc">')
    assert spaced != plain
    wide = ('<?xml version="1.0" encoding="utf-16"?>' + plain).encode("utf-16")
    assert parse_voc(spaced.encode()) == parse_voc(wide) == parse_voc(plain.encode())


def test_refused_folders(folder, tmp_path):
    with pytest.raises(SourceError, match="no such folder"):
        open_source("voc", tmp_path / "absent")
    with pytest.raises(SourceError, match="no folder JPEGImages or"):
        open_source("voc", folder / "ImageSets")
    with pytest.raises(ConfigError, match="needs a folder"):
        open_source("voc")
    for file in [*folder.glob("*/*.jpg"), *folder.glob("*/*.xml")]:
        file.unlink()
    with pytest.raises(SourceError, match="no images in it"):
        open_source("voc", folder)


def test_given_classes_keep_their_order(folder):
    source = open_source("voc", folder, class_names=["dog", "cat", "ant"])
    assert source.class_names == ["background", "dog", "cat", "ant"]
    assert everything(source)["LABEL"] == [2, 2, 3]
    source = open_source("voc", folder, class_names=["dog", "cat"], bad_records="skip")
    assert everything(source)["NAME"] == [b"a", b"b"]
    assert "'ant' is not one of the given classes" in source.skipped[0].reason


def test_imagenet_det_layout(folder):
    det = folder / "det"
    for kind, ending in (("Data", "jpg"), ("Annotations", "xml")):
        target = det / kind / "DET" / "train" / "n01"
        target.mkdir(parents=True)
        source = "JPEGImages" if kind == "Data" else "Annotations"
        shutil.copy(folder / source / f"a.{ending}", target / f"n01_7.{ending}")
    (det / "ImageSets" / "DET").mkdir(parents=True)
    (det / "ImageSets" / "DET" / "train.txt").write_text("n01/n01_7 1\n")
    assert everything(open_source("voc", det, image_set="train"))["NAME"] == [b"n01/n01_7"]


def test_fingerprint(folder):
    first = open_source("voc", folder).fingerprint()
    assert open_source("voc", folder).fingerprint() == first
    assert open_source("voc", folder, image_set="train").fingerprint() != first
    assert open_source("voc", folder, decode="8x8").fingerprint() != first
    (folder / "Annotations" / "a.xml").write_bytes(note(("cat", 0, 0, 9, 9)))
    assert open_source("voc", folder).fingerprint() != first


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_xml_raises_voc_errors_only(data):
    raw = bytearray(note(("cat", 1, 2, 3, 4), ("dog", 1, 2, 3, 4)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        objects = parse_voc(bytes(raw))
    except BoxError as error:
        assert "\n" not in str(error)
    else:
        assert main_object(objects) in objects


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300))
def test_any_xml_file_is_a_bad_record_at_most(folder, raw):
    (folder / "Annotations" / "b.xml").write_bytes(raw)
    got = everything(open_source("voc", folder, bad_records="skip"))
    assert got["NAME"] in ([b"a", b"c"], [b"a", b"b", b"c"])


def test_real_pairs_agree_with_a_second_reader():
    folder = real_data("voc-bccd")
    source = open_source("voc", folder)
    assert source.class_names == ["background", "Platelets", "RBC", "WBC"]
    got = everything(source)
    stems = sorted(p.stem for p in (folder / "JPEGImages").iterdir())
    assert got["NAME"] == [s.encode() for s in stems]
    assert len(stems) == 364
    label = {name: i for i, name in enumerate(source.class_names)}
    objects = 0
    for i, stem in enumerate(stems):
        assert got["IMAGE"][i] == (folder / "JPEGImages" / f"{stem}.jpg").read_bytes()
        found = ET.parse(folder / "Annotations" / f"{stem}.xml").getroot().findall("object")
        boxes = [[float(o.find("bndbox")[k].text) for k in range(4)] for o in found]
        assert got["BOXES"][i].reshape(-1, 4).tolist() == boxes
        assert got["BOX_LABELS"][i].tolist() == [label[o.findtext("name")] for o in found]
        largest = max(boxes, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))
        assert [got[c][i] for c in ("XMIN", "YMIN", "XMAX", "YMAX")] == largest
        objects += len(found)
    notes = source.parts["annotations"]
    counts = [len(b) for b in notes.batches(max_bytes=1 << 16)]
    assert sum(counts) == objects == 4888
    assert source.notes == [
        "2 boxes are one pixel wide or high: their corners are equal, and VOC counts both"
    ]
    assert len(counts) > 1
    for name, count in (("train", 205), ("val", 87), ("test", 72)):
        part = open_source("voc", folder, image_set=name)
        assert part.rows == sum(len(b) for b in part.batches()) == count


def test_keys_are_columns_of_a_composite(folder):
    batch = next(open_source("voc", folder).parts["annotations"].batches())
    assert isinstance(batch.key, Struct)
    assert len(batch.key) == len(batch) == 6
