"""Packed rows on a node against a second implementation in plain Python."""

import json
import os
from collections import Counter

import numpy as np
import pytest
from helpers.workers import steps_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConfigError, DataChanged, SchemaError
from ignitetf.train import pack_sequences

pytestmark = pytest.mark.node
WORLDS = (1, 2, 3, 4, 8)
SEED = 20
COUNT = 150
LENGTHS = np.random.default_rng(SEED).integers(0, 60, COUNT).tolist()
# Token t of document d, unlike any other token, `eos` and `pad`.
DOCUMENTS = [[100 + 100 * d + t for t in range(n)] for d, n in enumerate(LENGTHS)]
EOS, PAD = 2, 1


@pytest.fixture(scope="module")
def data(client):
    name = f"PACK{os.getpid()}"
    rows = [
        {"TOKENS": np.array(tokens, np.int32), "N": len(tokens), "KIND": number % 3}
        for number, tokens in enumerate(DOCUMENTS)
    ]
    load_dataset(rows, name, client=client, partitions=8)
    yield name
    client.sql(f'DROP TABLE IF EXISTS "{name}"')


def packed(client, data, shard=(0, 1), *, seed=SEED, epoch=0, length=32, **options):
    order = {"order": "keys"} if seed is None else {"order": "global", "shuffle": seed}
    rows = open_rows(data, client=client, fields=["TOKENS"], epoch=epoch, shard=shard, **order)
    options = {"global_batch": 24, "eos": EOS, "pad": PAD, "lengths": LENGTHS, **options}
    return pack_sequences(rows, "TOKENS", length, **options)


def epoch_order(client, data, seed, epoch):
    order = {"order": "keys"} if seed is None else {"order": "global", "shuffle": seed}
    rows = open_rows(data, client=client, fields=["N"], epoch=epoch, shard=(0, 1), **order)
    return [key for batch in rows.batches(64) for key in batch["key"].tolist()]


def plain_rows(documents, length, eos, window, long):
    """Packed rows as lists of (token, document, position)."""
    found = []
    for start in range(0, len(documents), window):
        rows = []
        for number in documents[start : start + window]:
            tokens = DOCUMENTS[number] + ([eos] if eos is not None and DOCUMENTS[number] else [])
            pieces = [tokens[i : i + length] for i in range(0, len(tokens), length)]
            for piece in pieces[:1] if long == "truncate" else pieces:
                row = next((r for r in rows if len(r) + len(piece) <= length), None)
                if row is None:
                    rows.append(row := [])
                row += [(token, number, at) for at, token in enumerate(piece)]
        found += rows
    return [row + [(PAD, -1, 0)] * (length - len(row)) for row in found]


def plain_steps(rows, length, size):
    steps = [rows[i : i + size] for i in range(0, len(rows), size)]
    if steps:
        steps[-1] = steps[-1] + [[(PAD, -1, 0)] * length] * (size - len(steps[-1]))
    return steps


def as_rows(batch):
    columns = [batch[name] for name in ("tokens", "document_ids", "positions")]
    assert all(column.dtype == np.int32 for column in columns)
    return [list(map(tuple, row)) for row in np.stack(columns, -1).tolist()]


def global_steps(workers, most=None):
    """The packed rows of each step of all workers, and the state after them."""
    batches = [worker.batches() for worker in workers]
    steps = []
    for parts in steps_of(batches, most):
        steps.append([row for part in parts for row in as_rows(part)])
        states = [json.dumps(one.state()) for one in batches]
        assert len(set(states)) == 1
    states = [one.state() for one in batches]
    for one in batches:
        one.close()
    return steps, json.loads(json.dumps(states[0]))


@st.composite
def options(draw):
    """Arguments of a packing."""
    return {
        "seed": draw(st.sampled_from([None, 3, 7])),
        "epoch": draw(st.integers(0, 2)),
        "length": draw(st.sampled_from([8, 17, 32, 64])),
        "eos": draw(st.sampled_from([None, EOS])),
        "window": draw(st.sampled_from([1, 13, 50, 1000])),
        "long": draw(st.sampled_from(["split", "truncate"])),
        "global_batch": draw(st.integers(8, 30)),
    }


@settings(max_examples=8)
@given(given_=options(), at=st.integers(0, 12), worlds=st.permutations(WORLDS))
def test_steps_are_the_same_for_any_number_of_workers_and_after_a_resume(
    client, data, given_, at, worlds
):
    documents = epoch_order(client, data, given_["seed"], given_["epoch"])
    size, form = given_["global_batch"], [given_[n] for n in ("length", "eos", "window", "long")]
    expected = plain_steps(plain_rows(documents, *form), given_["length"], size)
    for before, after in zip(worlds, [*worlds[1:], worlds[0]], strict=True):
        workers = [packed(client, data, (i, before), **given_) for i in range(before)]
        begun, state = global_steps(workers, at)
        assert begun == expected[:at]
        # Another epoch than that of the state is opened, as a new process would.
        workers = [
            packed(client, data, (i, after), **{**given_, "epoch": 0}).resume(state)
            for i in range(after)
        ]
        rest, _ = global_steps(workers)
        assert rest == expected[at:]


@pytest.mark.core
@pytest.mark.parametrize("count", WORLDS)
def test_no_token_is_lost_or_doubled(client, data, count):
    workers = [packed(client, data, (i, count), window=40) for i in range(count)]
    tokens = Counter()
    for worker in workers:
        for batch in worker.batches():
            assert batch["tokens"].shape == (24 // count, 32)
            for row in as_rows(batch):
                tokens.update((token, number) for token, number, _ in row if number >= 0)
                first = {}
                for token, number, at in row:
                    if number < 0:
                        assert (token, at) == (PAD, 0)
                    elif token == EOS:
                        assert at == (LENGTHS[number] - first.setdefault(number, LENGTHS[number]))
                    else:
                        # A position counts from the first token of the piece.
                        start = first.setdefault(number, token - 100 - 100 * number)
                        assert token == 100 + 100 * number + start + at
    full = [number for number, length in enumerate(LENGTHS) if length]
    whole = {(t, number): 1 for number in full for t in [*DOCUMENTS[number], EOS]}
    assert tokens == whole


def test_epochs_differ_and_follow_one_another(client, data):
    first = packed(client, data)
    steps = [global_steps([one])[0] for one in (first, first.next_epoch())]
    assert steps[0] != steps[1]
    assert steps[1] == global_steps([packed(client, data, epoch=1)])[0]


def test_a_last_step_can_be_left_out(client, data):
    every = packed(client, data)
    rows = every.count_rows()
    assert rows % 24
    assert len(list(every.batches())) == rows // 24 + 1
    assert len(list(every.batches(drop_remainder=True))) == rows // 24


@pytest.mark.parametrize("selected", [{}, {"where": "KIND > ?", "where_params": [0]}])
def test_lengths_are_counted_or_taken_from_a_field(client, data, selected):
    rows = open_rows(data, client=client, order="global", shard=(0, 1), **selected)
    numbers = [n for n in range(COUNT) if not selected or n % 3]
    assert len(rows) == len(numbers)
    for lengths in (None, "N"):
        found = pack_sequences(rows, "TOKENS", 32, global_batch=4, lengths=lengths)
        assert found.lengths.tolist() == [LENGTHS[n] for n in numbers]
        batches = list(found.batches())
    read = Counter(
        token
        for batch in batches
        for row in as_rows(batch)
        for token, number, _ in row
        if number >= 0
    )
    assert read == {token: 1 for n in numbers for token in DOCUMENTS[n]}


def test_documents_of_one_length_and_wide_tokens(client, cache_name):
    tokens = np.arange(60, dtype=np.int64).reshape(12, 5)
    load_dataset({"TOKENS": tokens, "BIG": tokens << 40}, cache_name, client=client)
    rows = open_rows(cache_name, client=client, order="keys", shard=(0, 1))
    (batch,) = pack_sequences(rows, "TOKENS", 10, global_batch=6).batches()
    assert batch["tokens"].tolist() == tokens.reshape(6, 10).tolist()
    assert batch["document_ids"].tolist() == np.repeat(np.arange(12), 5).reshape(6, 10).tolist()
    with pytest.raises(ConfigError, match="int32"):
        list(pack_sequences(rows, "BIG", 10, global_batch=6).batches())


def test_texts_as_keys(client, cache_name):
    rows = [{"K": f"k{i:03}", "TOKENS": np.arange(i, dtype=np.int32)} for i in range(20)]
    load_dataset(rows, cache_name, client=client, key="K")
    found = open_rows(cache_name, client=client, order="global", shard=(0, 1))
    packing = pack_sequences(found, "TOKENS", 8, global_batch=2)
    assert sorted(packing.lengths.tolist()) == list(range(20))
    lists = found[range(20)]["val"]["TOKENS"]
    assert np.diff(lists.offsets).tolist() == packing.lengths.tolist()
    assert sum((batch["document_ids"] >= 0).sum() for batch in packing.batches()) == 190


def test_what_cannot_be_packed_is_refused(client, data, cache_name):
    def refused(match, error=ConfigError, rows=None, field="TOKENS", **options):
        opened = open_rows(data, client=client, shard=(0, 1), **(rows or {"order": "global"}))
        with pytest.raises(error, match=match):
            pack_sequences(opened, field, 32, **{"global_batch": 8, **options})

    refused("not read by key", rows={"order": "scan"})
    refused("global_batch= or even=", rows={"order": "global", "global_batch": 8})
    refused("no field 'X'", SchemaError, field="X")
    refused("lists of whole numbers", SchemaError, field="N")
    refused("long='cut'", long="cut")
    refused("window=0", window=0)
    refused("lengths of int64", lengths=[1, 2])
    refused("lengths from -1", lengths=[-1] * COUNT)
    refused("whole numbers", lengths="TOKENS")
    with pytest.raises(ConfigError, match="tokens, a packed row has 32"):
        list(packed(client, data, long="error").batches())
    wrong = [*LENGTHS[:-1], LENGTHS[-1] + 1]
    with pytest.raises(DataChanged, match=f"row {COUNT - 1} has"):
        list(packed(client, data, lengths=wrong).batches())


def test_a_state_of_another_packing_is_refused(client, data):
    state = global_steps([packed(client, data)], 2)[1]
    for other in ({"window": 9}, {"length": 33}, {"eos": 3}, {"long": "truncate"}, {"seed": 4}):
        with pytest.raises(ConfigError):
            packed(client, data, **other).resume(state)
    with pytest.raises(DataChanged):
        packed(client, data, lengths=[*LENGTHS[:-1], 5]).resume(state)
    for wrong in (None, {}, {**state, "row": -1}, {**state, "window": 99}, {**state, "rows": {}}):
        with pytest.raises(ConfigError):
            packed(client, data).resume(wrong)


def test_a_dataset_has_the_batches_epoch_after_epoch(client, data):
    pytest.importorskip("tensorflow")
    first = packed(client, data, (1, 3))
    dataset = first.tf()
    for one in (first, first.next_epoch()):
        expected, found = list(one.batches()), list(dataset.as_numpy_iterator())
        assert len(expected) == len(found)
        for mine, theirs in zip(expected, found, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(np.array_equal(mine[name], theirs[name]) for name in mine)
