"""Splits: each row in one part, by its key alone; exact where they are balanced by a field."""

import hashlib
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import ConfigError
from ignitetf.read.selection import find_split
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.splits import Division, balanced, divided, fold_fractions
from ignitetf.wire.checksum import marks_of
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Dense, Runs
from ignitetf.wire.schema import BYTES, Field, Schema

pytestmark = pytest.mark.core

ODD = 0x9E3779B97F4A7C15
TOP = 1 << 64
# Of the keys 0, 1 and 2 with seed 0.
PLACES = [6997079983189497485, 6724249391519290372, 4698136652252522250]


def numbers(count):
    return np.arange(count, dtype=np.uint64)


def slow_mix(value, salt):
    """The finalizer of the checksums, in whole numbers of Python."""
    value ^= salt
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % TOP
    value = (value ^ value >> 27) * 0x94D049BB133111EB % TOP
    return value ^ value >> 31


@given(st.integers(0, TOP - 1), st.integers(0, 1 << 62))
def test_a_place_is_what_a_second_implementation_says(mark, seed):
    digest = hashlib.blake2b(f"ignitetf split:{seed}".encode(), digest_size=16).digest()
    first, second = np.frombuffer(digest, "<u8").tolist()
    division = divided({"a": 1}, seed)
    wanted = slow_mix(slow_mix(mark, first), second) >> 1
    assert division.places(np.array([mark], np.uint64)).tolist() == [wanted]


def test_places_stay_as_they_were_released():
    """Manifests outlive versions: other places would move rows between splits."""
    assert divided({"a": 1}).places(numbers(3)).tolist() == PLACES


def test_marks_depend_on_the_key_and_not_on_its_name_or_width():
    def marks(name, code, dtype, column):
        return marks_of(Schema("T", Field(name, code, np.dtype(dtype)), ()), column).tolist()

    long = marks("key", TypeCode.LONG, "i8", Dense(np.array([5, -7])))
    assert long == marks("ID", TypeCode.INT, "i4", Dense(np.array([5, -7], np.int32)))
    text = Runs.from_bytes([b"a", "ключ".encode()])
    assert marks("key", TypeCode.STRING, BYTES, text) == marks("N", TypeCode.STRING, BYTES, text)


@pytest.mark.parametrize("seed", range(5))
def test_fractions_of_many_keys(seed):
    count, fractions = 100_000, {"train": "0.8", "validation": "1/20", "test": 0.15}
    division = divided(fractions, seed)
    parts = division.parts(division.places(numbers(count)), None)
    for number, share in enumerate((0.8, 0.05, 0.15)):
        sigma = (count * share * (1 - share)) ** 0.5
        assert abs((parts == number).sum() - count * share) < 4 * sigma


def test_another_seed_gives_another_and_independent_split():
    ways = [divided({"a": 0.5, "b": 0.5}, seed) for seed in (0, 1)]
    first, second = (way.parts(way.places(numbers(40_000)), None) for way in ways)
    assert abs((first == second).sum() - 20_000) < 4 * 100


@given(st.integers(2, 50))
def test_folds_are_of_one_size(count):
    division = divided(fold_fractions(count))
    edges = [0, *division.bounds, 1 << 63]
    widths = np.diff(np.array(edges, object))
    assert division.names == tuple(f"fold{i}" for i in range(count))
    assert max(widths) - min(widths) <= 1 and list(division.bounds) == [
        (i + 1) * (1 << 63) // count for i in range(count - 1)
    ]


LABELS = st.lists(st.integers(-3, 3) | st.none(), min_size=1, max_size=200)
WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def column_of(labels):
    values = np.array([0 if label is None else label for label in labels], np.int32)
    return Dense(values, valid=np.array([label is not None for label in labels]))


def text_column(labels):
    return Runs.from_bytes([None if label is None else f"ä{label}".encode() for label in labels])


@pytest.mark.parametrize("make", [column_of, text_column])
@given(labels=LABELS, weights=WEIGHTS, seed=st.integers(0, 1000))
def test_a_balanced_division_is_exact_for_each_value_and_in_total(make, labels, weights, seed):
    shares = {f"s{i}": Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    plain = divided(shares, seed, "LABEL")
    places = plain.places(numbers(len(labels)))
    division = balanced(plain, places, make(labels))
    parts = division.parts(places, make(labels))
    for value in set(labels):
        own = parts[[label == value for label in labels]]
        for number, share in enumerate(shares.values()):
            assert abs((own == number).sum() - share * len(own)) < 1
    for number, share in enumerate(shares.values()):
        assert abs((parts == number).sum() - share * len(labels)) < len(shares)


@given(labels=LABELS, weights=WEIGHTS, more=st.data())
def test_a_balanced_division_depends_on_neither_order_nor_pages(labels, weights, more):
    shares = {f"s{i}": Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    plain = divided(shares, 3, "LABEL")
    places = plain.places(numbers(len(labels)))
    division = balanced(plain, places, column_of(labels))
    order = np.array(more.draw(st.permutations(range(len(labels)))), np.int64)
    assert balanced(plain, places[order], column_of([labels[i] for i in order])) == division
    whole = division.parts(places, column_of(labels))
    cut = len(labels) // 2
    halves = [
        division.parts(places[part], column_of(labels[part]))
        for part in (slice(None, cut), slice(cut, None))
    ]
    assert np.concatenate(halves).tolist() == whole.tolist()


def test_a_value_that_was_not_there_is_divided_by_the_fractions():
    plain = divided({"a": 0.7, "b": 0.3}, 1, "LABEL")
    division = balanced(plain, plain.places(numbers(3)), column_of([1, 1, 2]))
    new = plain.places(numbers(50_000))
    parts = division.parts(new, column_of([9] * 50_000))
    assert parts.tolist() == divided({"a": 0.7, "b": 0.3}, 1).parts(new, None).tolist()
    # Those of few known values, too, as near as the known rows allow.
    assert abs((division.parts(new, column_of([2] * 50_000)) == 1).mean() - 0.3) < 0.5


@given(WEIGHTS, st.integers(0, 99), LABELS)
def test_a_division_comes_back_from_the_manifest(weights, seed, labels):
    shares = {f"s{i}": Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    plain = divided(shares, seed, "LABEL")
    division = balanced(plain, plain.places(numbers(len(labels))), text_column(labels))
    division = division.counted(np.arange(2 * len(weights)).reshape(-1, 2), 4)
    again = Division.from_json(json.loads(json.dumps(division.to_json())))
    assert again == division and again.digest == division.digest
    assert again.counts(4) == division.rows and again.counts(5) is None


@pytest.mark.parametrize(
    ("fractions", "found"),
    [
        ({"a": 0.5, "b": 0.4}, "add up to 0.9"),
        ({"a": 0.5, "b": 0.500001}, "add up to 1.000001"),
        ({"a": -0.5, "b": 1.5}, "a=-0.5"),
        ({"a": 0, "b": 1}, "a=0"),
        ({"a": "nan", "b": 1}, "a=nan"),
        ({"a": "1/0"}, "a=1/0"),
        ({"a": "many"}, "a=many"),
        ({"": 1}, "split name ''"),
        ({"-a": 1}, "split name '-a'"),
        ({"a[0]": 1}, "split name"),
        ({1: 1}, "split name 1"),
        ({}, "0 splits"),
    ],
)
def test_fractions_that_are_none(fractions, found):
    with pytest.raises(ConfigError, match=found.replace("[", r"\[")):
        divided(fractions)


def test_fractions_that_add_up_within_a_billionth():
    parts = divided(dict.fromkeys("abc", 0.3333333333))
    assert parts.fractions == (Fraction(1, 3),) * 3
    with pytest.raises(ConfigError, match="folds"):
        fold_fractions(1)


def test_a_field_with_too_many_values():
    with pytest.raises(ConfigError, match="60,000 values"):
        balanced(divided({"a": 0.5, "b": 0.5}, 0, "X"), numbers(60_000), Dense(np.arange(60_000)))


SCHEMA = Schema("T", Field("key", TypeCode.LONG, np.dtype("i8")), ())


@pytest.mark.parametrize(
    ("splits", "name", "hint"),
    [
        ((divided({"train": 0.5, "test": 0.5}),), "trian", "did you mean train"),
        ((divided({"train": 0.5, "test": 0.5}),), "-trian", "did you mean -train"),
        ((divided({"train": 0.5, "test": 0.5}),), "zzz", "train, test"),
        ((), "train", "ignitetf split T"),
        ((divided({"a": 1}),), 3, "name of a split"),
    ],
)
def test_a_split_that_does_not_exist(splits, name, hint):
    with pytest.raises(ConfigError) as caught:
        find_split("T", Manifest("T", SCHEMA, splits=splits), name)
    assert hint in caught.value.hint


def test_data_without_a_manifest_have_no_splits():
    with pytest.raises(ConfigError, match="manifest") as caught:
        find_split("T", None, "train")
    assert "where=" in caught.value.hint


@given(st.integers(2, 9), st.integers(0, 9))
def test_all_but_a_fold_are_the_others(count, seed):
    manifest = Manifest("T", SCHEMA, splits=(divided(fold_fractions(count), seed),))
    has = [find_split("T", manifest, f"fold{i}").has(numbers(500), None) for i in range(count)]
    assert np.sum(has, axis=0).tolist() == [1] * 500
    for number, own in enumerate(has):
        rest = find_split("T", manifest, f"-fold{number}").has(numbers(500), None)
        assert rest.tolist() == (~own).tolist()
