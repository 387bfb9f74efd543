"""What a load keeps in the catalog: every value comes back, under the names that stand there."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import SchemaError
from ignitetf.load.journal import Journal
from ignitetf.tables.catalog import Manifest
from ignitetf.tables.storage import LoadFacts, Origin, Storage
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.schema import Field, Schema

pytestmark = pytest.mark.core

SCHEMA = Schema(
    "T", Field("key", TypeCode.LONG, np.dtype("<i8")), (Field("X", TypeCode.INT, np.dtype("<i4")),)
)
COUNTS = st.integers(0, 1 << 40)
NUMBER = st.none() | COUNTS
BLOCKS = st.lists(COUNTS, max_size=4).map(tuple)

storages = st.builds(
    Storage,
    layout=st.sampled_from(["rows", "blocks"]),
    index=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    limit=NUMBER,
    main_limit=NUMBER,
    sql=st.booleans(),
    bad_records=st.sampled_from(["fail", "skip"]),
)
origins = st.builds(
    Origin,
    kind=st.text(max_size=5),
    options=st.dictionaries(st.text(max_size=5), st.booleans() | COUNTS | st.text(max_size=5)),
    part=st.none() | st.text(max_size=5),
)


@st.composite
def facts(draw):
    storage = draw(storages)
    blocks = draw(BLOCKS) if storage.layout == "blocks" else ()
    given = draw(COUNTS), draw(st.text()), draw(NUMBER), draw(st.none() | origins)
    return LoadFacts(storage, *given, blocks, tuple(draw(st.permutations(blocks))))


@st.composite
def journals(draw):
    storage = draw(storages)
    return Journal(
        name=draw(st.text()),
        cache=draw(st.text()),
        mode=draw(st.sampled_from(["new", "append", "replace"])),
        schema=SCHEMA,
        source=draw(st.text()),
        storage=storage,
        phase=draw(st.sampled_from(["load", "move"])),
        position=draw(COUNTS),
        checksum=draw(st.integers(0, (1 << 64) - 1)),
        partition_rows=draw(st.lists(COUNTS, max_size=4)),
        partitions=draw(NUMBER),
        origin=draw(st.none() | origins),
        replaces=draw(st.lists(st.text(), max_size=2)),
        blocks=draw(BLOCKS) if storage.layout == "blocks" else (),
        block_rows=draw(BLOCKS) if storage.layout == "blocks" else (),
    )


def stored(entry):
    return json.loads(json.dumps(entry))


@given(facts())
def test_a_manifest_comes_back(options):
    manifest = Manifest("T", SCHEMA, layout=options.storage.layout, options=options)
    assert Manifest.from_json(stored(manifest.to_json())) == manifest


@given(journals())
def test_a_journal_comes_back(journal):
    assert Journal.from_json(stored(journal.to_json())) == journal


def test_names_in_the_catalog():
    storage = Storage("blocks", ("X",), limit=10)
    origin = Origin("csv", {"key": "ID"}, "data")
    chosen = {
        "layout": "blocks",
        "index": ["X"],
        "limit": 10,
        "main_limit": None,
        "sql": True,
        "bad_records": "fail",
    }
    opened = {"kind": "csv", "options": {"key": "ID"}, "part": "data"}
    facts = LoadFacts(storage, 1, "ab12", 10, origin, (2, 0, 1), (7, 8, 9))
    assert stored(Manifest("T", SCHEMA, options=facts).to_json())["options"] == {
        **chosen,
        "backups": 1,
        "load": "ab12",
        "next_key": 10,
        "origin": opened,
        "blocks": [2, 0, 1],
        "block_rows": [7, 8, 9],
    }
    journal = Journal("T", "T", "new", SCHEMA, "f", storage, origin=origin, blocks=(2,))
    journal.block_rows = (5, 6)
    entry = stored(journal.to_json())
    assert entry["options"] == chosen and entry["origin"] == opened
    assert entry["state"] == {"blocks": [2], "block_rows": [5, 6]} and entry["checksum"] == "0" * 16


@pytest.mark.parametrize(
    "change",
    [{"options": 1}, {"options": {"index": 5}}, {"state": None}, {"origin": "x"}, {"more": 1}],
)
def test_a_damaged_journal_is_refused(change):
    entry = Journal("T", "T", "new", SCHEMA, "f", Storage()).to_json()
    with pytest.raises(SchemaError, match="cannot be read"):
        Journal.from_json({**entry, **change})


@pytest.mark.parametrize("options", [1, {"index": 5}, {"origin": "x"}])
def test_a_damaged_manifest_is_refused(options):
    entry = Manifest("T", SCHEMA).to_json()
    with pytest.raises(SchemaError, match="not a manifest"):
        Manifest.from_json({**entry, "options": options})
