"""A server without a feature that we use is served the slower way: same rows, or a clear refusal."""

import contextlib

import numpy as np
import pytest

from ignitetf import load_dataset, open_rows
from ignitetf.dbapi import connect as connect_sql
from ignitetf.errors import ConfigError, SqlError
from ignitetf.explore.verify import verify
from ignitetf.fs.store import Store
from ignitetf.net import handshake
from ignitetf.net.client import Client, connect
from ignitetf.tables.removal import remove_cache
from ignitetf.wire.codes import Feature

pytestmark = pytest.mark.node

ROWS = 5_000
EVERY = Feature(sum(Feature))
# What the server and we have in common: all but one feature, none, and older protocols.
COMMON = {
    **{f"without {feature.name}": (EVERY & ~feature, (1, 7, 0)) for feature in Feature},
    "none": (Feature(0), (1, 7, 0)),
    "protocol 1.6": (Feature(0), (1, 6, 0)),
    "protocol 1.4": (Feature(0), (1, 4, 0)),
}


@pytest.fixture(params=list(COMMON))
def older(client, request, monkeypatch):
    """A client of a server that seems to have less; and what they have in common."""
    features, version = COMMON[request.param]

    def less(address, settings, asked=EVERY):
        return real(address, settings, asked & features)

    real = handshake.open_connection
    monkeypatch.setattr(handshake, "_VERSIONS", (version,))
    for module in ("channel", "pyclient"):
        monkeypatch.setattr(f"ignitetf.net.{module}.open_connection", less)
    with connect(settings=client.settings) as found:
        with found.channel() as channel:
            assert channel.features == features and channel.peer.version == version
        yield found, features


def test_loads_reads_queries_and_files_work(client, older, cache_name):
    less, features = older
    values = np.arange(ROWS, dtype=np.int64) * 3
    for layout in ("blocks", "rows"):
        name = f"{cache_name}_{layout.upper()}"
        load_dataset({"N": values, "M": values / 2}, name, client=less, partitions=8, layout=layout)
        assert verify(client, name).ok
        rows = open_rows(name, client=less, shuffle=1)
        read = np.concatenate([batch["val"]["N"] for batch in rows.batches(512)])
        assert sorted(read.tolist()) == values.tolist()
    where = {"client": less, "where": "N < ?", "where_params": (300,)}
    if Feature.QUERY_PARTITIONS_BATCH_SIZE in features:
        assert sum(len(batch["val"]["N"]) for batch in open_rows(name, **where).batches(64)) == 100
    else:
        with pytest.raises(ConfigError, match="SQL by partition"):
            open_rows(name, **where)
    query = f"SELECT N FROM {name} ORDER BY N"
    assert [n for (n,) in less.sql(query).fetchall()] == values.tolist()
    assert less.cache(name).get(7).N == 21
    with contextlib.closing(Store(less, "FEWER")) as store:
        with store.writing("/file") as writer:
            writer.write(memoryview(values).cast("B"))
        with contextlib.closing(store.open_read("/file")) as reader:
            found = bytearray(values.nbytes)
            assert reader.read_into(0, memoryview(found)) == values.nbytes
        store.remove("/file")
    assert found == values.tobytes()


def test_a_cursor_of_the_db_api_works(client, older):
    with contextlib.closing(connect_sql(settings=older[0].settings)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT X FROM SYSTEM_RANGE(1, 3000)")
        assert cursor.fetchall() == [(n,) for n in range(1, 3001)]


def test_a_cluster_without_sql_views_shows_the_tables(client, cache_name, monkeypatch):
    run = Client._sql

    def older(self, statement, params, **options):
        if "CREATE" in statement and "VIEW" in statement:
            raise SqlError("Failed to parse query")
        if "SYS.VIEWS" in statement:
            raise SqlError(
                'Column "V.SQL" not found' if "V.SQL" in statement else 'Column "SQL" not found'
            )
        return run(self, statement, params, **options)

    monkeypatch.setattr(Client, "_sql", older)
    values = np.arange(100)
    with connect(settings=client.settings) as less:
        for if_exists in ("error", "replace"):
            data = {"N": values, "M": values / 2}
            load_dataset(data, cache_name, client=less, partitions=8, if_exists=if_exists)
            query = f"SELECT SUM(N) FROM {cache_name}__ROWS"
            assert less.sql(query).fetchall() == [(int(values.sum()),)]
        less.sql(f"CREATE TABLE {cache_name}_OTHER (ID INT PRIMARY KEY, N INT)").close()
        less.sql(f"INSERT INTO {cache_name}_OTHER VALUES (1, 2)").close()
        for table in (cache_name, f"{cache_name}_OTHER"):
            assert len(list(open_rows(table, client=less, where="N >= 2").batches(1000))) == 1
            remove_cache(less, next(n for n in less.cache_names() if n.endswith(table)))
