"""DALI's external source: batches by number, as DALI asks for them; DALI itself where it is."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.typed_rows import ROWS, record

from ignitetf import load_dataset, open_rows
from ignitetf.dali import Source
from ignitetf.errors import ConfigError, DataChanged

pytestmark = pytest.mark.node


def asked(source, epoch, number):
    return source(SimpleNamespace(epoch_idx=epoch, iteration=number))


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_by_number_are_those_of_open_rows(address, typed_rows, drop_last):
    outputs = ["key", "A", "V", "S"]
    source = Source(typed_rows, 32, address, outputs=outputs, shuffle=7, drop_last=drop_last)
    other = pickle.loads(pickle.dumps(source))
    for epoch in (1, 0):
        rows = open_rows(typed_rows, address, shuffle=7, order="global", epoch=epoch)
        wanted = [b["key"].tolist() for b in rows.batches(32, drop_remainder=drop_last)]
        assert len(source) == len(wanted)
        for number in reversed(range(len(wanted))):
            for each in (source, other):
                keys, squares, lists, texts = asked(each, epoch, number)
                assert keys.tolist() == wanted[number]
                assert squares.tolist() == [key * key for key in wanted[number]]
                for key, values, text in zip(keys.tolist(), lists, texts, strict=True):
                    assert np.array_equal(values, record(key)["V"])
                    assert text.tobytes() == record(key)["S"].encode()
        with pytest.raises(StopIteration):
            asked(source, epoch, len(wanted))


def test_no_rows_and_what_is_refused(address, client, cache_name, typed_rows):
    empty = Source(typed_rows, 8, address, outputs=["A"], where="A < 0")
    with pytest.raises(StopIteration):
        asked(empty, 0, 0)
    for wrong in ({"order": "scan"}, {"outputs": []}, {"batch_size": None}, {"batch_size": 0}):
        with pytest.raises(ConfigError):
            Source(typed_rows, address=address, **{"batch_size": 8, "outputs": ["A"], **wrong})
    for count in (10, 20):
        rows = [{"A": i} for i in range(count)]
        load_dataset(rows, cache_name, client=client, if_exists="replace")
        if count == 10:
            source = Source(cache_name, 4, address)
            left = pickle.dumps(source)
    with pytest.raises(DataChanged):
        asked(pickle.loads(left), 0, 0)


@pytest.mark.parametrize("parallel", [{}, {"parallel": True}], ids=str)
def test_a_checkpoint_of_a_pipeline_goes_on(address, typed_rows, parallel):
    dali = pytest.importorskip("nvidia.dali", reason="needs DALI: pip install nvidia-dali-cuda120")

    def pipeline(workers, checkpoint=None):
        source = Source(typed_rows, 64, address, outputs=["key", "S"], shuffle=7)
        options = {"py_num_workers": workers, "py_start_method": "spawn"} if parallel else {}
        made = dali.Pipeline(
            64, 1, None, enable_checkpointing=True, checkpoint=checkpoint, **options
        )
        with made:
            made.set_outputs(*dali.fn.external_source(source=source, **source.options, **parallel))
        made.build()
        return made

    def batch(made):
        keys, texts = made.run()
        found = [int(keys.at(i)) for i in range(len(keys))]
        assert [texts.at(i).tobytes() for i in range(len(keys))] == [
            record(key)["S"].encode() for key in found
        ]
        return found

    def rest(made):
        found = []
        while True:
            try:
                found.append(batch(made))
            except StopIteration:
                made.reset()
                return found

    first = pipeline(1)
    assert sorted(key for part in rest(first) for key in part) == list(range(ROWS))
    begun = batch(first)
    state = first.checkpoint()
    rows = open_rows(typed_rows, address, shuffle=7, order="global", epoch=1)
    wanted = [b["key"].tolist() for b in rows.batches(64)]
    assert [begun, *rest(first)] == wanted
    assert rest(pipeline(2, state)) == wanted[1:]
