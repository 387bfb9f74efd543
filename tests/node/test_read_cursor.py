"""Pages of any size: the next is asked for while one is on its way, also where there is none."""

import numpy as np
import pytest

from ignitetf import IgniteDataset, load_dataset
from ignitetf.read import cursor as cursors

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
    ask, finish = cursors.Cursor._ask, cursors.Cursor.finish

    def counted_ask(self):
        asked.append(self._page_rows)
        ask(self)

    def counted_finish(self):
        refused.append(self._request is not None)
        assert finish(self)
        return True

    whole = None
    for size in range(1, ROWS + 2):
        asked.clear()
        refused.clear()
        with monkeypatch.context() as patch:
            patch.setattr(cursors.Cursor, "_ask", counted_ask)
            patch.setattr(cursors.Cursor, "finish", counted_finish)
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
        # One request for each full page; that after a last page that is full is refused.
        assert len(asked) == ROWS // size
        assert refused == [ROWS % size == 0]


def test_an_early_request_leaves_the_connection_usable(client, cache):
    for _ in range(3):
        dataset = IgniteDataset(cache, settings=client.settings, page_size=ROWS // 2)
        for _ in range(2):
            assert sum(len(page["key"]) for page in dataset.numpy()) == ROWS
