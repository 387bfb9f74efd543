"""Pages of any size: the next is asked for while one is on its way, also where there is none."""

import random
import uuid
from dataclasses import replace

import numpy as np
import pytest

from ignitetf import IgniteDataset, connect, load_dataset, open_rows
from ignitetf.errors import ConnectError, SchemaError
from ignitetf.read import page_decoder, scan_thread, small_units
from ignitetf.read.page_requests import PageRequests
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.units import UnitReader

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.node

ROWS = 24


@pytest.fixture
def cache(client, cache_name):
    columns = {"LABEL": np.arange(ROWS, dtype=np.int32), "TEXT": [f"row {n}" for n in range(ROWS)]}
    load_dataset(columns, cache_name, client=client, partitions=1)
    return cache_name


@pytest.mark.parametrize("where", [None, "LABEL >= 0"])
def test_pages_of_every_size_give_the_same_rows(client, cache, where, monkeypatch):
    asked, refused = [], []
    ask, end = PageRequests._ask_page, PageRequests.end

    def counted_ask(self, cursor):
        asked.append(cursor)
        ask(self, cursor)

    def counted_end(self):
        refused.append(bool(self._present.requests))
        assert end(self)
        return True

    whole = None
    for size in range(1, ROWS + 2):
        asked.clear()
        refused.clear()
        with monkeypatch.context() as patch:
            patch.setattr(PageRequests, "_ask_page", counted_ask)
            patch.setattr(PageRequests, "end", counted_end)
            dataset = IgniteDataset(cache, settings=client.settings, where=where, page_size=size)
            asked.clear()
            refused.clear()
            pages = list(dataset.numpy())
        rows = [
            (key, label, text)
            for page in pages
            for key, label, text in zip(
                page["key"].tolist(),
                page["val"]["LABEL"].tolist(),
                page["val"]["TEXT"].tolist(),
                strict=True,
            )
        ]
        assert sorted(label for _, label, _ in rows) == list(range(ROWS))
        whole = whole or rows
        assert rows == whole
        # One request for each full page. That after a last page that is full is refused; there is
        # none if the page was here as a whole before it was looked at.
        full, exactly = ROWS // size, ROWS % size == 0
        assert full - exactly <= len(asked) <= full
        assert refused == [exactly and len(asked) == full]


def test_an_early_request_leaves_the_connection_usable(client, cache):
    for _ in range(3):
        dataset = IgniteDataset(cache, settings=client.settings, page_size=ROWS // 2)
        for _ in range(2):
            assert sum(len(page["key"]) for page in dataset.numpy()) == ROWS


@pytest.fixture(params=["in C", "in Python"])
def decoding(request, monkeypatch):
    """Rows are taken apart by a builder, or in pages by the decoder."""
    if request.param == "in Python":
        monkeypatch.setattr(BatchBuilder, "can_build", lambda schema: False)


@pytest.mark.parametrize("readers", [1, 3])
def test_however_decoded_the_rows_are_the_same(client, cache_name, decoding, readers):
    rng = np.random.default_rng(2)
    columns = {"A": rng.integers(0, 99, 900), "TEXT": [f"row {n}" * (n % 5) for n in range(900)]}
    load_dataset(columns, cache_name, client=client, partitions=8)
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=17, readers=readers)
    rows = {}
    for page in dataset.numpy():
        for at, key in enumerate(page["key"].tolist()):
            rows[key] = (int(page["val"]["A"][at]), page["val"]["TEXT"][at])
    assert rows == {
        n: (int(columns["A"][n]), columns["TEXT"][n].encode()) for n in range(len(columns["A"]))
    }


def test_however_decoded_errors_say_where(client, cache_name, decoding):
    arrays = {"A": np.zeros((900, 3), np.uint8)}
    load_dataset(arrays, cache_name, client=client, partitions=8)
    client.sql(f"UPDATE {cache_name} SET A = X'0102' WHERE _KEY = 123")
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=17)
    with pytest.raises(SchemaError, match="has 2 elements, the dataset expects 3") as caught:
        list(dataset.numpy())
    assert caught.value.fields["cache"] == cache_name
    assert caught.value.fields["partition"] in range(8)
    assert caught.value.fields["field"] == "A"


def test_however_decoded_a_lost_connection_is_replaced(client, cache_name, decoding, monkeypatch):
    """The look-up of a type is the one request that decoding makes."""
    columns = {"A": np.arange(300)}
    load_dataset(columns, cache_name, client=client, partitions=2)
    dataset = IgniteDataset(cache_name, settings=client.settings, page_size=50)
    work, lost = page_decoder.with_types, []

    def with_types(*args):
        if len(lost) < 3:
            lost.append(True)
            raise ConnectError("lost")
        return work(*args)

    monkeypatch.setattr(page_decoder, "with_types", with_types)
    pages = list(dataset.numpy())
    assert len(lost) == 3
    assert sorted(np.concatenate([p["val"]["A"] for p in pages]).tolist()) == list(range(300))


@pytest.mark.parametrize("builds", [True, False], ids=["", "no compiler"])
@pytest.mark.parametrize("size", [1, 10, 11, 12, 13, 40])
def test_more_partitions_than_a_connection_may_have_cursors(
    client, cache_name, size, builds, monkeypatch
):
    """Pages that are a little smaller than most partitions leave a cursor open for each of them."""
    if not builds:
        monkeypatch.setattr(BatchBuilder, "can_build", lambda schema: False)
    rows = 256 * 12
    load_dataset({"A": np.arange(rows)}, cache_name, client=client, partitions=256)
    settings = replace(client.settings, request_timeout_s=5.0)
    with connect(settings=settings) as impatient:
        expected = open_rows(cache_name, client=client, shard=(0, 1))
        found = open_rows(
            cache_name, client=impatient, shard=(0, 1), page_size=size, on_node_loss="error"
        )
        keys = [
            np.concatenate([batch["key"] for batch in one.batches()]) for one in (expected, found)
        ]
    np.testing.assert_array_equal(*keys)
    assert len(keys[0]) == rows


def test_a_node_that_allows_fewer_cursors_is_asked_for_less(client, cache_name, monkeypatch):
    """As one whose configuration says so; here more than the usual number are asked for."""
    rows = 256 * 12
    load_dataset({"A": np.arange(rows)}, cache_name, client=client, partitions=256)
    expected = open_rows(cache_name, client=client, shard=(0, 1)).batches()
    expected = np.concatenate([batch["key"] for batch in expected])
    told, is_asked_too_much = [], scan_thread.is_asked_too_much

    def seen(error):
        told.append(error)
        return is_asked_too_much(error)

    monkeypatch.setattr("ignitetf.read.page_query._MAX_PIPELINED", 250)
    monkeypatch.setattr("ignitetf.read.queries._MOST_OPEN", 250)
    monkeypatch.setattr(scan_thread, "is_asked_too_much", seen)
    found = open_rows(
        cache_name, client=client, shard=(0, 1), page_size=5, on_node_loss="error"
    ).batches()
    np.testing.assert_array_equal(np.concatenate([batch["key"] for batch in found]), expected)
    assert all("Too many open cursors" in str(error) for error in told) and told


@pytest.mark.parametrize("links", [1, 3])
@pytest.mark.parametrize(("most", "share"), [(4096, 0.3), (5, 0.0), (5, 0.3), (1, 0.0), (300, 1.0)])
def test_units_may_be_given_back_at_any_time(client, cache_name, most, share, links, monkeypatch):
    """So that they are read by themselves, and the next ones in the loop in C again.

    Several connections lead to the same node here.
    """
    rows = 256 * 12
    load_dataset({"A": np.arange(rows)}, cache_name, client=client, partitions=256)
    expected = open_rows(cache_name, client=client, shard=(0, 1)).batches()
    expected = np.concatenate([batch["key"] for batch in expected])
    rng, read, begin, given = random.Random(most), UnitReader.read, UnitReader.begin, []

    def fewer(self, stop, *limits):
        begin(self, stop if share == 0 else min(stop, self.next + 20), *limits)

    def some(self):
        if rng.random() >= share:
            return read(self)
        given.append(self.next)
        return RowsEnd.OTHER

    owners = {p: uuid.UUID(int=p * 7 % links) for p in range(256)} if links > 1 else {}
    monkeypatch.setattr("ignitetf.read.scan.owners_of", lambda *args: owners)
    monkeypatch.setattr(small_units, "_MOST_UNITS", most)
    monkeypatch.setattr(UnitReader, "begin", fewer)
    monkeypatch.setattr(UnitReader, "read", some)
    found = open_rows(cache_name, client=client, shard=(0, 1), on_node_loss="error").batches()
    np.testing.assert_array_equal(np.concatenate([batch["key"] for batch in found]), expected)
    assert bool(given) == (share > 0)
