"""COCO and YOLO: images with the boxes of their objects, in pixels of the stored image."""

import contextlib
import io
import json
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from source_helpers import check_resume, everything, same

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source


def jpeg(width=40, height=30, orientation=1):
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.new("RGB", (width, height), (width, height, 9)).save(out, "JPEG", exif=exif)
    return out.getvalue()


def annotation(image, category, box, **more):
    return {"image_id": image, "category_id": category, "bbox": box, "iscrowd": 0, **more}


RLE = {"counts": [3, 5, 1192], "size": [30, 40]}


@pytest.fixture
def coco(tmp_path):
    """The folder of a data set, and its annotations, which `write` stores."""
    (tmp_path / "annotations").mkdir()
    (tmp_path / "train").mkdir()
    for name in "abc":
        (tmp_path / "train" / f"{name}.jpg").write_bytes(jpeg())
    ids = {"a": 7, "b": 3, "c": 2**40}
    whole = {
        "images": [
            {"id": i, "file_name": f"{n}.jpg", "width": 40, "height": 30} for n, i in ids.items()
        ],
        "annotations": [
            annotation(3, 90, [1, 2, 3, 4.5], area=9.5, segmentation=[[1, 2, 4, 2, 4, 6]]),
            annotation(7, 2, [0, 0, 40, 30], iscrowd=1, area=1200, segmentation=RLE),
            annotation(3, 2, [5, 5, 35.5, 25], area=887.5, segmentation=[]),
        ],
        "categories": [{"id": 90, "name": "toothbrush"}, {"id": 2, "name": "bicycle"}],
    }
    return tmp_path, whole


def write(coco):
    folder, whole = coco
    path = folder / "annotations" / "instances_train.json"
    path.write_text(json.dumps(whole))
    return path


def test_coco_has_a_row_for_each_image_with_all_its_boxes(coco):
    folder, _ = coco
    source = open_source("coco", write(coco), segmentation=True)
    assert source.class_names == ["bicycle", "toothbrush"]  # 2 and 90, without gaps
    got = everything(source)
    assert got["NAME"] == [b"a.jpg", b"b.jpg", b"c.jpg"]
    assert got["IMAGE"] == [(folder / "train" / f"{n}.jpg").read_bytes() for n in "abc"]
    assert (got["IMAGE_ID"], got["WIDTH"], got["HEIGHT"]) == ([7, 3, 2**40], [40] * 3, [30] * 3)
    boxes = [box.reshape(-1, 4).tolist() for box in got["BOXES"]]
    assert boxes == [[[0, 0, 40, 30]], [[1, 2, 4, 6.5], [5, 5, 40, 30]], []]
    for name, expected in {
        "BOX_LABELS": [[0], [1, 0], []], "CATEGORY_IDS": [[2], [90, 2], []],
        "CROWDS": [[1], [0, 0], []], "AREAS": [[1200], [9.5, 887.5], []],
    }.items():  # fmt: skip
        assert [list(one) for one in got[name]] == expected
    told = [[json.loads(one) for one in row] for row in got["SEGMENTATIONS"]]
    assert told == [[RLE], [[[1, 2, 4, 2, 4, 6]], []], []]
    assert "1 boxes were outside" in source.notes[-1]
    check_resume(source, max_bytes=1)
    plain = open_source("coco", folder)  # the only file in the folder annotations
    assert "SEGMENTATIONS" not in plain.schema.names
    assert any("--segmentation" in note for note in plain.notes)


def test_coco_beside_its_images(coco, tmp_path):
    _, whole = coco
    (tmp_path / "train" / "_annotations.coco.json").write_text(json.dumps(whole))
    assert everything(open_source("coco", tmp_path / "train"))["key"] == [0, 1, 2]
    (tmp_path / "x.json").write_text(json.dumps(whole))
    with pytest.raises(SourceError) as caught:
        open_source("coco", tmp_path / "x.json")
    assert "--images" in caught.value.hint
    got = everything(open_source("coco", tmp_path / "x.json", images=tmp_path / "train"))
    assert got["key"] == [0, 1, 2]


BAD = {
    "empty": ({"bbox": [5, 5, 0, 4]}, "is empty or reversed"),
    "reversed": ({"bbox": [5, 5, -3, 4]}, "is empty or reversed"),
    "outside": ({"bbox": [5, 5, 40, 4]}, "is outside the image of 40 x 30"),
    "three numbers": ({"bbox": [5, 5, 4]}, "expected x, y, width, height"),
    "no numbers": ({"bbox": [1, 2, 3, True]}, "expected x, y, width, height"),
    "an area that is no number": ({"area": "big"}, "the area big, not a number"),
    "an area beyond doubles": ({"area": 10**400}, "not a number"),
    "a side beyond doubles": ({"bbox": [5, 5, 10**400, 4]}, "expected x, y, width, height"),
    "a crowd in words": ({"iscrowd": "0"}, "the iscrowd '0', expected 0 or 1"),
    "two crowds": ({"iscrowd": 2}, "the iscrowd '2', expected 0 or 1"),
    "unknown category": ({"category_id": 5}, "the category 5, which is not in the file"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_box_of_coco_is_named_or_its_image_left_out(coco, case):
    folder, whole = coco
    change, words = BAD[case]
    whole["annotations"][0].update(change)
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("coco", write(coco)))
    assert caught.value.name == str(folder / "train" / "b.jpg")
    source = open_source("coco", folder, bad_records="skip")
    assert (everything(source)["key"], len(source.skipped)) == ([0, 2], 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder, whole: (folder / "train" / "b.jpg").unlink(), "No such file|no such file"),
        (
            lambda folder, whole: (folder / "train" / "b.jpg").write_bytes(jpeg()[:-99]),
            "damaged image",
        ),
        (lambda folder, whole: whole["images"][1].update(width=80), "an image of 80 x 30"),
        (lambda folder, whole: whole["images"][1].update(width="w"), "not two numbers"),
        (
            lambda folder, whole: (folder / "train" / "b.jpg").write_bytes(jpeg(30, 40, 6)),
            "EXIF orientation",
        ),
    ],
)
def test_a_bad_image_of_coco_is_named_or_left_out(coco, change, words):
    folder, whole = coco
    change(folder, whole)
    with pytest.raises(SourceError, match=words):
        everything(open_source("coco", write(coco)))
    source = open_source("coco", folder, bad_records="skip")
    assert everything(source)["key"] == [0, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: whole.pop("images"), "no list of images"),
        (lambda whole: whole["images"].append(whole["images"][0]), "2 entries have the image id 7"),
        (lambda whole: whole["categories"].append({"id": 90, "name": "x"}), "category id 90"),
        (lambda whole: whole["categories"][0].update(name="bicycle"), "category name 'bicycle'"),
        (lambda whole: whole["images"][1].update(id=2**70), "expected an integer"),
        (lambda whole: whole["annotations"][0].update(image_id=[3]), "expected an integer"),
        (lambda whole: whole["images"][1].pop("file_name"), "entry 2 of images has no file_name"),
        (lambda whole: whole["annotations"][0].update(image_id=99), "such as image_id 99"),
    ],
)
def test_a_damaged_annotation_file_is_refused(coco, change, words):
    change(coco[1])
    with pytest.raises(SourceError, match=words):
        open_source("coco", write(coco))


def test_an_object_free_image_of_another_size_is_a_bad_record(coco):
    _, whole = coco
    whole["images"][2].update(width=80)
    with pytest.raises(SourceError, match="an image of 80 x 30"):
        everything(open_source("coco", write(coco)))


def test_coco_as_roboflow_writes_it(coco, tmp_path_factory):
    """Splits in folders, and the name of the project as a category without objects."""
    folder, whole = coco
    root = tmp_path_factory.mktemp("roboflow")
    for split, names in {"train": "ab", "valid": "c"}.items():
        (root / split).mkdir()
        part = json.loads(json.dumps(whole))
        part["images"] = [one for one in part["images"] if one["file_name"][0] in names]
        ids = [one["id"] for one in part["images"]]
        part["annotations"] = [one for one in part["annotations"] if one["image_id"] in ids]
        part["categories"].append({"id": 0, "name": "toothbrush", "supercategory": "none"})
        if split == "valid":
            part["categories"] = part["categories"][:1]
        (root / split / "_annotations.coco.json").write_text(json.dumps(part))
        for name in names:
            shutil.copy(folder / "train" / f"{name}.jpg", root / split)
    shutil.copy(folder / "train" / "a.jpg", root / "train" / "extra.jpg")
    expected = everything(open_source("coco", write(coco)))
    shutil.make_archive(str(root), "zip", root)
    for place in (root, f"{root}.zip"):
        source = open_source("coco", place)
        got = everything(source)
        assert (got.pop("SPLIT"), source.split_names) == (
            [b"train", b"train", b"valid"], ("train", "valid"),
        )  # fmt: skip
        assert same(got, expected)
        assert source.class_names == ["bicycle", "toothbrush"]
        assert any("'toothbrush' with the id 0" in text for text in source.notes)
        assert any("extra.jpg" in text for text in source.notes)
        check_resume(source, max_bytes=1)


def test_ids_of_categories_may_be_longs(coco):
    _, whole = coco
    whole["categories"][0]["id"] = whole["annotations"][0]["category_id"] = 2**40
    got = everything(open_source("coco", write(coco)))
    assert [list(one) for one in got["CATEGORY_IDS"]] == [[2], [2**40, 2], []]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_in_a_coco_file_is_an_error_that_is_told(coco, data):
    """Whatever a value is replaced by: no error of Python, and the other images are loaded."""
    folder, whole = coco
    copy = json.loads(json.dumps(whole))
    part = copy[data.draw(st.sampled_from(sorted(copy)))]
    entry = data.draw(st.sampled_from(part))
    key = data.draw(st.sampled_from(sorted(entry)))
    odd = [
        None,
        True,
        -1,
        0.5,
        2**70,
        10**400,
        "x",
        [],
        [1],
        {},
        {"a": 1},
        "../a.jpg",
        float("inf"),
    ]
    entry[key] = data.draw(st.sampled_from(odd))
    with contextlib.suppress(SourceError):
        path = write((folder, copy))
        got = everything(open_source("coco", path, segmentation=True, bad_records="skip"))
        assert len(got["key"]) <= 3


@pytest.fixture
def yolo(tmp_path):
    for split, names in {"train": "ab", "val": "c"}.items():
        for kind in ("images", "labels"):
            (tmp_path / kind / split).mkdir(parents=True)
        for name in names:
            (tmp_path / "images" / split / f"{name}.jpg").write_bytes(jpeg())
    (tmp_path / "labels/train/a.txt").write_text("1 0.5 0.5 1 1\n0 0.25 0.5 0.1 0.2\n")
    (tmp_path / "labels/train/b.txt").write_text("")
    (tmp_path / "data.yaml").write_text(
        "path: /content/elsewhere\ntrain: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"
    )
    return tmp_path


def test_yolo_has_a_row_for_each_image_with_boxes_in_pixels(yolo):
    source = open_source("yolo", yolo)
    assert (source.class_names, source.split_names) == (["cat", "dog"], ("train", "val"))
    got = everything(source)
    assert [box.reshape(-1, 4).round(4).tolist() for box in got["BOXES"]] == [
        [[0, 0, 40, 30], [8, 12, 12, 18]], [], [],
    ]  # fmt: skip
    assert [list(one) for one in got["BOX_LABELS"]] == [[1, 0], [], []]
    assert got["SPLIT"] == [b"train", b"train", b"val"]
    assert got["NAME"] == [b"images/train/a.jpg", b"images/train/b.jpg", b"images/val/c.jpg"]
    assert "1 of 3 images have no label file" in source.notes[0]
    check_resume(source, max_bytes=1)
    train = open_source("yolo", yolo / "data.yaml", split="train")
    assert (train.rows, train.split_names, "SPLIT" in train.schema.names) == (2, (), False)
    with pytest.raises(ConfigError) as caught:
        open_source("yolo", yolo, split="test")
    assert "train, val" in caught.value.hint
    (yolo / "labels/train/b.txt").write_text("0 0.5 0.5 1 1\n")
    assert open_source("yolo", yolo).fingerprint() != source.fingerprint()


def test_yolo_of_other_tools(yolo, tmp_path):
    """Folders of Roboflow, names by number, polygons, and a folder without a description."""
    (yolo / "labels/train/b.txt").write_text("0 0.1 0.2 0.5 0.2 0.3 0.6\n")
    (yolo / "data.yaml").write_text("train: ../images/train\nnames: {0: cat, 1: dog}\n")
    source = open_source("yolo", yolo)
    boxes = everything(source)["BOXES"][1]
    assert boxes.reshape(-1, 4).round(4).tolist() == [[4, 6, 20, 18]]
    assert any("polygons" in note for note in source.notes)
    (yolo / "list.txt").write_text("images/val/c.jpg\n./images/train/a.jpg\n")
    (yolo / "data.yaml").write_text("train: list.txt\nnames: [cat, dog]\n")
    got = everything(open_source("yolo", yolo))["NAME"]
    assert got == [b"images/train/a.jpg", b"images/val/c.jpg"]
    (yolo / "data.yaml").unlink()
    with pytest.raises(SourceError, match=r"no data\.yaml and no classes\.txt"):
        open_source("yolo", yolo)
    (yolo / "classes.txt").write_text("cat\ndog\n")
    assert open_source("yolo", yolo).rows == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2 0.5 0.5 1 1", "class '2' is not one of the 2 classes"),
        ("cat 0.5 0.5 1 1", "class 'cat' is not one"),
        ("0 0.5 0.5 1", "4 values, expected class x y width height"),
        ("0 0.5 x 1 1", "not a number"),
        ("0 0.5 0_5 1 1", "not a number"),
        ("0 0.5 \u0660.\u0665 1 1", "not a number"),
        ("0 0.5 nan 1 1", "not a number"),
        ("0 0.5 0.5 1 0", "is empty or reversed"),
        ("0 5 5 10 10", "is outside the image"),
    ],
)
def test_a_bad_line_of_yolo_is_named_or_its_image_left_out(yolo, line, words):
    (yolo / "labels/train/b.txt").write_text(f"0 0.5 0.5 1 1\n{line}\n")
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("yolo", yolo))
    assert caught.value.name == str(yolo / "images/train/b.jpg")
    source = open_source("yolo", yolo, bad_records="skip")
    assert (everything(source)["key"], len(source.skipped)) == ([0, 2], 1)


def test_boxes_of_yolo_in_an_image_that_exif_turns_are_unclear(yolo):
    (yolo / "images/train/a.jpg").write_bytes(jpeg(orientation=6))
    with pytest.raises(SourceError, match="EXIF orientation"):
        everything(open_source("yolo", yolo))


def test_key_points_are_told_and_are_no_polygons(yolo):
    """With two numbers each they look like corners of a polygon; data.yaml tells them apart."""
    points = " ".join(f"{n / 20}" for n in range(8))
    (yolo / "labels/train/a.txt").write_text(f"1 0.5 0.5 0.5 0.5 {points}\n")
    with (yolo / "data.yaml").open("a") as file:
        file.write("kpt_shape: [4, 2]\n")
    source = open_source("yolo", yolo)
    assert everything(source)["BOXES"][0].tolist() == [10, 7.5, 30, 22.5]
    assert any("key points" in text for text in source.notes)


def test_label_files_without_an_image_are_told(yolo):
    (yolo / "labels/train/z.txt").write_text("1 0.5 0.5 1 1\n")
    source = open_source("yolo", yolo)
    assert any("labels/train/z.txt" in text for text in source.notes)


def test_an_archive_of_yolo_is_its_folder(yolo, tmp_path_factory):
    archive = tmp_path_factory.mktemp("zip") / "data"
    shutil.make_archive(str(archive), "zip", yolo)
    packed = everything(open_source("yolo", f"{archive}.zip"))
    assert same(packed, everything(open_source("yolo", yolo)))


def test_boxes_are_those_that_shares_give(yolo):
    random = np.random.default_rng(1)
    low, high = random.uniform(0, 0.4, (50, 2)), random.uniform(0.5, 1, (50, 2))
    shares = np.hstack([(low + high) / 2, high - low])
    lines = "".join("0 {} {} {} {}\n".format(*row) for row in shares)
    (yolo / "labels/train/a.txt").write_text(lines)
    found = everything(open_source("yolo", yolo))["BOXES"][0].reshape(-1, 4)
    assert np.allclose(found, np.hstack([low, high]) * [40, 30, 40, 30], atol=1e-4)


def test_fields_of_coco_that_are_not_loaded_are_told(coco):
    _, whole = coco
    whole["images"][1]["caption"] = "a cat"
    whole["categories"][0]["supercategory"] = "indoor"
    whole["annotations"][0]["score"] = 0.5
    notes = " ".join(open_source("coco", write(coco)).notes)
    for words in ("annotations: score", "images: caption", "categories: supercategory"):
        assert f"skipped fields of the {words}" in notes


def test_a_value_twice_in_a_coco_file_is_refused(coco):
    path = write(coco)
    path.write_text(
        path.read_text().replace('"category_id": 90', '"category_id": 2, "category_id": 90')
    )
    with pytest.raises(SourceError, match="two values are called 'category_id'"):
        open_source("coco", path)


def test_names_of_yolo_are_those_in_the_file(yolo):
    """YAML would make them false, 8, 10 and a date."""
    for names in ("[no, 010, 1_0, 2020-01-01]", "{0: no, '1': 010, 2: 1_0, 3: 2020-01-01}"):
        (yolo / "data.yaml").write_text(f"train: images/train\nval:\ntest: ~\nnames: {names}\n")
        assert open_source("yolo", yolo).class_names == ["no", "010", "1_0", "2020-01-01"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "names: [a, b]\ntrain: images/train\nnames: [b, a]",
            "line 3: a key 'names' is there twice",
        ),
        ("names: {0: a, 0: b}\ntrain: images/train", "line 1: a key '0' is there twice"),
        ("names: [a, ~]\ntrain: images/train", "the name of class 1 is not a text"),
        ("names: &a [*a, [b]]\ntrain: images/train", "the name of class 0 is not a text"),
        ("names: [a, b]\nnc: 3\ntrain: images/train", "2 names, but nc is 3"),
    ],
)
def test_a_description_of_yolo_that_says_two_things_is_refused(yolo, text, words):
    (yolo / "data.yaml").write_text(text)
    with pytest.raises(SourceError, match=words):
        open_source("yolo", yolo)


def test_splits_of_yolo_have_any_usual_name(yolo):
    (yolo / "data.yaml").write_text("valid: images/val\ntrain: images/train\nnames: [cat, dog]\n")
    source = open_source("yolo", yolo)
    assert source.split_names == ("train", "valid")
    assert everything(source)["SPLIT"] == [b"train", b"train", b"valid"]
