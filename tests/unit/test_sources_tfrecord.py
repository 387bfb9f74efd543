import gzip
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_helpers import batch_sizes, check_resume, everything, same, values

from ignitetf.crc import masked_crc32c
from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources import open_source, tfrecord
from ignitetf.load.sources.example import ExampleError, parse_example
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import BYTES

tf = pytest.importorskip("tensorflow")


def example(**features):
    """A serialised Example: bytes, str, int and float values or lists of them."""
    out = {}
    for name, value in features.items():
        items = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
        name = name.replace("__", "/")
        if isinstance(value, np.ndarray):
            out[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
        elif items and isinstance(items[0], (bytes, str)):
            raw = [i.encode() if isinstance(i, str) else i for i in items]
            out[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=raw))
        elif items and isinstance(items[0], (float, np.floating)):
            out[name] = tf.train.Feature(float_list=tf.train.FloatList(value=items))
        else:
            out[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=items))
    features = tf.train.Features(feature=out)
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


RANDOM = np.random.RandomState(3)
PIXELS = RANDOM.randint(0, 256, (40, 4, 3, 1), np.uint8)
EQUAL = [
    example(image=PIXELS[i].tobytes(), label=i % 10, score=[i / 2, -i], name=f"row {i:03}")
    for i in range(40)
]
MIXED = [
    example(
        image__encoded=bytes(RANDOM.randint(0, 256, i % 7 + 1, np.uint8)),
        big=(-1) ** i * 3**i,
        boxes=np.arange(4 * (i % 3), dtype=np.float32),
        tags=[f"t{k}" for k in range(i % 4)],
        text="é" * i,
    )
    for i in range(40)
]


def test_the_crcs_are_those_that_tensorflow_writes(tmp_path):
    sizes = [*range(300), 1 << 16, (1 << 20) + 1]
    path = write(tmp_path / "a.tfrecord", [RANDOM.bytes(size) for size in sizes])
    with path.open("rb") as file:
        for size in sizes:
            head, head_crc = file.read(8), file.read(4)
            record, crc = file.read(size), file.read(4)
            assert int.from_bytes(head, "little") == size
            assert masked_crc32c(head) == int.from_bytes(head_crc, "little")
            assert masked_crc32c(record) == int.from_bytes(crc, "little")
        assert not file.read()


def test_inferred_features(tmp_path):
    source = open_source("tfrecord", write(tmp_path / "a.tfrecord", EQUAL))
    assert {f.name: (f.type, f.shape, f.nullable) for f in source.schema.fields} == {
        "IMAGE": (TypeCode.BYTE_ARRAY, (), False),
        "LABEL": (TypeCode.LONG, (), False),
        "NAME": (TypeCode.STRING, (), False),
        "SCORE": (TypeCode.FLOAT_ARRAY, (2,), False),
    }
    got = everything(source)
    assert got["key"] == list(range(40))
    assert got["IMAGE"] == [p.tobytes() for p in PIXELS]
    assert got["LABEL"] == [i % 10 for i in range(40)]
    assert got["NAME"] == [f"row {i:03}".encode() for i in range(40)]
    assert np.array(got["SCORE"]).tolist() == [[i / 2, -i] for i in range(40)]
    assert source.rows == 40


def test_features_of_different_length(tmp_path):
    source = open_source("tfrecord", write(tmp_path / "a.tfrecord", MIXED))
    assert source.schema["IMAGE_ENCODED"].dtype == BYTES
    assert source.schema["BOXES"].shape == (None,)
    assert source.schema["TAGS"].type == TypeCode.STRING_ARRAY
    got = everything(source)
    for i, record in enumerate(MIXED):
        features = tf.train.Example.FromString(record).features.feature
        assert got["IMAGE_ENCODED"][i] == features["image/encoded"].bytes_list.value[0]
        assert got["BIG"][i] == features["big"].int64_list.value[0]
        assert got["BOXES"][i].tolist() == list(features["boxes"].float_list.value)
        assert got["TAGS"][i] == list(features["tags"].bytes_list.value)
        assert got["TEXT"][i] == features["text"].bytes_list.value[0]
    check_resume(source, max_bytes=150)
    check_resume(source, max_bytes=1)


def test_declared_features(tmp_path):
    path = write(tmp_path / "a.tfrecord", EQUAL)
    spec = "image:uint8[4,3,1], label:int32, score:float32[?], name:string"
    for features in (spec, dict(part.strip().split(":") for part in spec.split(", "))):
        source = open_source("tfrecord", path, features=features)
        got = everything(source)
        assert np.array_equal(np.stack(got["IMAGE"]), PIXELS)
        assert source.schema["LABEL"].dtype == np.int32
        assert got["LABEL"] == [i % 10 for i in range(40)]
        assert [v.tolist() for v in got["SCORE"]] == [[i / 2, -i] for i in range(40)]
    one = open_source("tfrecord", path, features={"label": "bool"}, bad_records="skip")
    assert everything(one)["LABEL"] == [bool(i % 10) for i in range(40) if i % 10 < 2]
    with pytest.raises(ConfigError, match="is the only column"):
        open_source("tfrecord", path, features="label:int64", key="label")


def test_the_key_may_be_a_feature(tmp_path):
    path = write(tmp_path / "a.tfrecord", EQUAL)
    source = open_source("tfrecord", path, key="name")
    assert source.schema.key.type == TypeCode.STRING
    assert everything(source)["key"][7] == b"row 007"


def test_tensorflow_s_own_specs_are_taken(tmp_path):
    path = write(tmp_path / "a.tfrecord", MIXED)
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "big": tf.io.FixedLenFeature([], tf.int64),
        "boxes": tf.io.VarLenFeature(tf.float32),
    }
    source = open_source("tfrecord", path, features=features)
    assert source.schema.names == ("IMAGE_ENCODED", "BIG", "BOXES")
    got = everything(source)
    parsed = tf.io.parse_example(MIXED, features)
    assert got["BIG"] == parsed["big"].numpy().tolist()
    assert got["IMAGE_ENCODED"] == parsed["image/encoded"].numpy().tolist()
    flat = np.concatenate(got["BOXES"])
    assert flat.tolist() == parsed["boxes"].values.numpy().tolist()


@pytest.mark.parametrize(
    "features",
    ["label", "label:strnig", "label:float32[", "label:float32[0]", "a:int64,,b", {"a": 3}, {}],
)
def test_wrong_specs(tmp_path, features):
    path = write(tmp_path / "a.tfrecord", EQUAL[:2])
    with pytest.raises(ConfigError) as caught:
        open_source("tfrecord", path, features=features)
    assert "label:int64" in caught.value.hint


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("label:float32[3]", "1 values, expected shape"),
        ("score:float32", "2 values, expected one"),
        ("image:int64", "bytes instead of a number"),
        ("label:bytes", "numbers instead of bytes"),
        ("absent:int64", "null"),
        ("image:uint8[5]", "12 values, expected shape"),
        ("score:int64[2]", "float32 instead of int64"),
        ("image:string", "utf-8"),
    ],
)
def test_features_that_do_not_fit(tmp_path, features, words):
    path = write(tmp_path / "a.tfrecord", EQUAL)
    with pytest.raises(SourceError, match=words) as caught:
        everything(open_source("tfrecord", path, features=features))
    assert "record " in str(caught.value)


def test_missing_features(tmp_path):
    records = [example(a=1, b="x"), example(a=2), example(b="y", c=[1, 2])]
    source = open_source("tfrecord", write(tmp_path / "a.tfrecord", records))
    got = everything(source)
    assert got["A"] == [1, 2, None]
    assert got["B"] == [b"x", None, b"y"]
    assert [v.tolist() for v in got["C"]] == [[], [], [1, 2]]
    assert source.schema["A"].nullable
    assert not source.schema["C"].nullable


def test_gzip_and_several_files(tmp_path):
    for i in range(3):
        write(tmp_path / f"part-{i}.tfrecord.gz", EQUAL[i * 10 : i * 10 + 10], "GZIP")
    one = everything(open_source("tfrecord", write(tmp_path / "one", EQUAL[:30])))
    parts = [tmp_path / f"part-{i}.tfrecord.gz" for i in range(3)]
    for location in (tmp_path / "part-*", tmp_path, parts):
        source = open_source("tfrecord", location)
        assert same(everything(source, max_bytes=500), one)
    check_resume(source, max_bytes=300)
    assert max(batch_sizes(source, 500)) <= 600


def test_a_length_that_looks_like_gzip_is_no_gzip(tmp_path):
    record = example(a=b"x" * (0x8B1F - 20))
    record = example(a=b"x" * (0x8B1F - 20 + 0x8B1F - len(record)))
    path = write(tmp_path / "a.tfrecord", [record])
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert len(everything(open_source("tfrecord", path))["A"][0]) > 30_000


def test_large_records(tmp_path):
    records = [example(a=bytes([i]) * 3_000_000, b=i) for i in range(4)]
    source = open_source("tfrecord", write(tmp_path / "a.tfrecord", records))
    assert [len(b) for b in source.batches(max_bytes=1 << 20)] == [1] * 4
    got = everything(source)
    assert got["A"] == [bytes([i]) * 3_000_000 for i in range(4)]
    assert everything(source, start=3)["B"] == [3]


def test_the_sample_for_the_types_is_bounded_in_bytes(tmp_path, monkeypatch):
    records = [example(image=[bytes([i]) * (1 << 20)]) for i in range(12)]
    write(tmp_path / "a.tfrecord", records)
    monkeypatch.setattr(tfrecord, "SAMPLE_BYTES", 3 << 20)
    source = open_source("tfrecord", tmp_path / "a.tfrecord")
    assert len(source._sample()) < 6
    assert len(everything(source)["key"]) == 12


def frames(records):
    """Start of every frame in a file."""
    out, pos = [], 0
    for record in records:
        out.append(pos)
        pos += len(record) + 16
    return out


def test_damaged_records_are_named_or_skipped(tmp_path):
    path = write(tmp_path / "a.tfrecord", EQUAL)
    raw = bytearray(path.read_bytes())
    at = frames(EQUAL)
    raw[at[5] + 20] ^= 1
    raw[at[39] + 12 + len(EQUAL[39])] ^= 1
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="record 5: wrong CRC"):
        everything(open_source("tfrecord", path))
    source = open_source("tfrecord", path, bad_records="skip")
    assert everything(source)["key"] == [n for n in range(40) if n not in (5, 39)]
    assert [r.name.rpartition(" ")[2] for r in source.skipped] == ["5", "39"]
    assert source.rows == 40
    check_resume(source, max_bytes=300)


def test_a_wrong_length_ends_the_file(tmp_path):
    path = write(tmp_path / "a.tfrecord", EQUAL)
    raw = path.read_bytes()
    at = frames(EQUAL)
    for damaged, words in (
        (raw[: at[7]] + b"\xff" + raw[at[7] + 1 :], "record 7: the CRC of its length"),
        (raw[: at[7] + 4] + b"\x01" + raw[at[7] + 5 :], "record 7: the CRC of its length"),
        (raw[:-1], "truncated in record 39"),
        (raw[: at[9] + 5], "truncated in record 9"),
        (b"hello, this is no record file", "record 0: the CRC of its length"),
        (b"x", "truncated in record 0"),
        (b"", "no features"),
        (gzip.compress(raw)[:-20], "end-of-stream"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=words) as caught:
            everything(open_source("tfrecord", path, bad_records="skip"))
        assert "\n" not in str(caught.value)


def test_equal_layouts_and_unequal_ones_give_the_same_columns(tmp_path):
    """Numbers of equal bytes but other widths must not be read as one matrix."""
    records = [example(a=[1, 300], b=[7.0, 8.0]), example(a=[300, 1], b=[9.0, 1.0])] * 10
    got = everything(open_source("tfrecord", write(tmp_path / "a.tfrecord", records)))
    assert [v.tolist() for v in got["A"]] == [[1, 300], [300, 1]] * 10
    assert [v.tolist() for v in got["B"]] == [[7, 8], [9, 1]] * 10
    records = [example(a=i, b=1) if i % 2 else example(a=i, c=1) for i in range(20)]
    got = everything(open_source("tfrecord", write(tmp_path / "b.tfrecord", records)))
    assert got["B"] == [None, 1] * 10
    assert got["C"] == [1, None] * 10


feature = st.one_of(
    st.lists(st.binary(max_size=9), max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), max_size=4),
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), feature, max_size=4))
def test_examples_are_parsed_as_by_protobuf(features):
    message = tf.train.Example()
    for name, items in features.items():
        one = message.features.feature[name]
        if items and isinstance(items[0], bytes):
            one.bytes_list.value.extend(items)
        elif items and isinstance(items[0], float):
            one.float_list.value.extend(items)
        else:
            one.int64_list.value.extend(items)
    data = message.SerializeToString()
    got = {name: list(f.values(data)) for name, f in parse_example(data).items() if f.spans}
    assert got == {name: items for name, items in features.items() if items}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_examples_raise_example_errors_only(data):
    raw = bytearray(MIXED[7])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        for found in parse_example(raw).values():
            found.values(raw)
    except ExampleError as error:
        assert "\n" not in str(error)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_files_raise_source_errors_only(tmp_path, data):
    path = tmp_path / "a.tfrecord"
    raw = bytearray(write(path, MIXED[:6]).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    try:
        source = open_source("tfrecord", path, bad_records="skip")
        got = everything(source)
    except SourceError as error:
        assert "\n" not in str(error)
    else:
        assert len(got["key"]) + len(source.skipped) == 6


def test_records_that_are_no_examples(tmp_path):
    path = write(tmp_path / "a.tfrecord", [*EQUAL[:3], b"\xff\xff", *EQUAL[3:6]])
    source = open_source("tfrecord", path, bad_records="skip")
    assert everything(source)["key"] == [0, 1, 2, 4, 5, 6]
    assert source.skipped[0].name.endswith("record 3")
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(SourceError, match="no features"):
        open_source("tfrecord", write(tmp_path / "b", [b"", b""]))


def test_fast_and_general_paths_agree(tmp_path):
    """Seven records are read one by one, forty as one matrix."""
    path = write(tmp_path / "a.tfrecord", EQUAL)
    whole = open_source("tfrecord", path)
    few = []
    for i in range(0, 40, 5):
        part = open_source("tfrecord", write(tmp_path / f"{i}", EQUAL[i : i + 5]))
        few += [values(b.columns["SCORE"]) for b in part.batches()]
    flat = [row.tolist() for rows in few for row in rows]
    assert flat == [row.tolist() for row in everything(whole)["SCORE"]]


@pytest.mark.parametrize("count", [1, 40], ids=["one", "a matrix of them"])
def test_steps_are_not_left_out_in_silence(tmp_path, count):
    steps = tf.train.FeatureLists(feature_list={"frames": tf.train.FeatureList()})
    records = [
        tf.train.SequenceExample(
            context=tf.train.Example.FromString(example(a=i)).features, feature_lists=steps
        ).SerializeToString()
        for i in range(count)
    ]
    path = write(tmp_path / "a.tfrecord", records)
    with pytest.raises(SourceError, match=r"record 0: it is a tf\.train\.Seq"):
        everything(open_source("tfrecord", path))
    assert everything(open_source("tfrecord", path, features="a:int64"))["A"] == list(range(count))


def tensor(dtype, *dims, **more):
    shape = {"dimensions": list(map(str, dims))} if dims else {}
    return {"tensor": {"shape": shape, "dtype": dtype, "encoding": "none", **more}}


TFDS = {
    "image": {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "encodingFormat": "jpeg"}},
    "label": {"classLabel": {"numClasses": "2"}},
    "text": {"text": {}},
    "flag": tensor("bool"),
    "matrix": tensor("float64", 2, 2),
    "small": tensor("uint8", 3),
    "steps": {"sequence": {"feature": tensor("float32", 2), "length": "-1"}},
    "raw": tensor("string"),
    "objects": {
        "sequence": {
            "feature": {
                "featuresDict": {
                    "features": {
                        "bbox": {
                            "boundingBox": {"shape": {"dimensions": ["4"]}, "dtype": "float32"}
                        },
                        "label": {"classLabel": {"numClasses": "5"}},
                    }
                }
            }
        }
    },
}


def test_a_folder_of_tfds_has_its_names_shapes_classes_and_splits(tmp_path):
    """Also where the first records tell nothing, as all lists in them have one length."""
    text = json.dumps({"featuresDict": {"features": TFDS}})
    (tmp_path / "features.json").write_text(text)
    (tmp_path / "label.labels.txt").write_text("no\nyes\n")
    records = [
        example(
            image=b"\xff\xd8", label=i % 2, text="12", flag=1, matrix=[1.0, 2.0, 3.0, 4.5],
            small=[1, 2, 255], steps=[0.5, 1.5], raw=b"x", objects__bbox=[0.0, 0.0, 0.5, 1.0],
            objects__label=[i],
        )
        for i in range(3)
    ]  # fmt: skip
    write(tmp_path / "toy-train.tfrecord-00000-of-00002", records[:1])
    write(tmp_path / "toy-train.tfrecord-00001-of-00002", records[1:2])
    write(tmp_path / "toy-test.tfrecord-00000-of-00001", records[2:])
    source = open_source("tfrecord", tmp_path)
    assert (source.class_names, source.split_names) == (["no", "yes"], ("test", "train"))
    shapes = {f.name: f.shape for f in source.schema.fields if f.shape}
    assert shapes == {
        "MATRIX": (2, 2), "SMALL": (3,), "STEPS": (None, 2), "OBJECTS_BBOX": (None, 4),
        "OBJECTS_LABEL": (None,),
    }  # fmt: skip
    types = {f.name: f.type.name for f in source.schema.fields}
    assert (types["IMAGE"], types["TEXT"], types["FLAG"]) == ("BYTE_ARRAY", "STRING", "BOOL")
    got = everything(source)
    assert got["SPLIT"] == [b"test", b"train", b"train"]
    assert got["LABEL"] == [0, 0, 1]
    assert got["MATRIX"][0].tolist() == [[1, 2], [3, 4.5]]
    assert got["SMALL"][0].tolist() == [1, 2, 255]
    assert (got["RAW"], got["TEXT"], got["FLAG"]) == ([b"x"] * 3, [b"12"] * 3, [True] * 3)
    train = open_source("tfrecord", tmp_path, split="train")
    assert everything(train)["OBJECTS_LABEL"] == [[0], [1]]
    (tmp_path / "features.json").write_text("{")
    with pytest.raises(SourceError, match=r"features\.json: "):
        open_source("tfrecord", tmp_path)
