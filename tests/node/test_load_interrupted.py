"""Ctrl-C while the node makes a cache: the cache is gone again, and one that was there stays."""

import contextlib
import threading
import time

import numpy as np
import pytest

from ignitetf.errors import CacheExists, ConnectError, LoadInterrupted
from ignitetf.load import run
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.load.writer import Flush, Writer, register_types
from ignitetf.net import pyclient
from ignitetf.net.channel import Channel
from ignitetf.tables.caches import create_cache, create_table
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.describe import list_tables
from ignitetf.tables.spec import CacheSpec
from ignitetf.tables.statements import create_tables
from ignitetf.wire.codes import OpCode
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import Schema, field_for

pytestmark = pytest.mark.node

FIELDS = (field_for("IMAGE", np.dtype("u1"), (4,)), field_for("LABEL", np.dtype("i4")))
KEY = field_for("key", np.dtype("i8"))
# Seconds for which a request for a cache has been under way when the interruption comes.
MOMENTS = ["unsent", 0.0, 0.01, 0.03, 0.1, "answered"]
ROWS = 300
KINDS = {
    "cache": lambda client, name: create_cache(client, CacheSpec(name)),
    "cache of 8 partitions": lambda client, name: create_cache(client, CacheSpec(name, 8)),
    "table": lambda client, name: create_table(client, schema(name), name, CacheSpec(name, 8)),
    "table without a number": lambda client, name: create_table(
        client, schema(name), name, CacheSpec(name)
    ),
    "index": lambda client, name: create_table(
        client, schema(name), name, CacheSpec(name, 8), ["LABEL"]
    ),
}


def schema(name):
    return Schema(name, KEY, FIELDS)


def rows(start=0):
    labels = np.arange(start, start + ROWS, dtype=np.int32)
    return {"IMAGE": np.zeros((ROWS, 4), np.uint8), "LABEL": labels}


@contextlib.contextmanager
def interrupted(name, moment, word=b"CREATE TABLE"):
    """Raise KeyboardInterrupt once, at a moment of the request that makes `name`."""
    send, answer = pyclient._Connection.send, pyclient._Connection._answer
    ask, receive = Channel.send, Channel.receive
    came, asked = [], []

    def makes(request):
        made = word in request or int.from_bytes(request[4:6], "little") == (
            OpCode.CACHE_CREATE_WITH_CONFIGURATION
        )
        return made and name.encode() in request and not came

    def sending(self, data, *args, **kwargs):
        if moment == "unsent" and makes(data):
            came.append(moment)
            raise KeyboardInterrupt
        return send(self, data, *args, **kwargs)

    def answering(self, request):
        return wait(lambda: answer(self, request)) if makes(request) else answer(self, request)

    def asking(self, op, *buffers):
        body = b"".join(map(bytes, buffers))
        made = op == OpCode.QUERY_SQL_FIELDS and word in body and name.encode() in body
        if made and not came and moment == "unsent":
            came.append(moment)
            raise KeyboardInterrupt
        number = ask(self, op, *buffers)
        if made and not came:
            asked.append((self, number))
        return number

    def receiving(self, number, **options):
        if (self, number) in asked and not came:
            return wait(lambda: receive(self, number, **options))
        return receive(self, number, **options)

    def wait(answered):
        came.append(moment)
        if moment == "answered":
            answered()
        else:
            time.sleep(moment)
        raise KeyboardInterrupt

    # Tables are made by SQL over a channel, caches by pyignite.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyclient._Connection, "send", sending)
        patch.setattr(pyclient._Connection, "_answer", answering)
        patch.setattr(Channel, "send", asking)
        patch.setattr(Channel, "receive", receiving)
        with pytest.raises(KeyboardInterrupt):
            yield
    assert came == [moment]


def of_name(client, name):
    """Caches and tables that a name has, also a moment later."""
    time.sleep(0.2)
    tables = [t["table"] for t in list_tables(client) if name in (t["table"], t["cache"])]
    return [n for n in client.cache_names() if n.startswith(name)], tables


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_was_being_made_is_gone(client, cache_name, kind):
    word = b"CREATE INDEX" if kind == "index" else b"CREATE TABLE"
    for moment in MOMENTS:
        with interrupted(cache_name, moment, word):
            KINDS[kind](client, cache_name)
        assert of_name(client, cache_name) == ([], []), moment
    KINDS[kind](client, cache_name)
    assert client.cache_exists(cache_name)


def test_the_interruption_passes_without_a_long_wait(client, cache_name):
    began = time.monotonic()
    with interrupted(cache_name, "unsent"):
        KINDS["table"](client, cache_name)
    # Half a second for a cache that does not come, and the calls before it.
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_was_there_stays(client, cache_name, kind, monkeypatch):
    """Also when the interruption comes before it is known to be there."""
    KINDS["table"](client, cache_name)
    client.sql(f'INSERT INTO "{cache_name}" (ID, IMAGE, LABEL) VALUES (1, ?, 2)', (b"abcd",))
    came = []

    def interrupting(receive):
        def once(*args, **options):
            answer = receive(*args, **options)
            if not came:
                came.append(answer)
                raise KeyboardInterrupt
            return answer

        return once

    # A thread beside the first may have the interruption.
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, CacheExists)):
        patch.setattr(Channel, "receive", interrupting(Channel.receive))
        patch.setattr(Channel, "receive_any", interrupting(Channel.receive_any))
        KINDS[kind](client, cache_name)
    assert len(came) == 1
    with pytest.raises(CacheExists):
        KINDS[kind](client, cache_name)
    assert client.sql(f'SELECT ID, LABEL FROM "{cache_name}"').fetchall() == [(1, 2)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_table_of_another_cache_stays(client, cache_name, moment):
    """The node refuses the name of the table, which is not that of the new cache."""
    KINDS["table"](client, cache_name)
    client.sql(f'INSERT INTO "{cache_name}" (ID, IMAGE, LABEL) VALUES (1, ?, 2)', (b"abcd",))
    other = f"{cache_name}_OTHER"
    # An answer that refuses is an error before anything else.
    expected = pytest.raises(CacheExists) if moment == "answered" else interrupted(other, moment)
    with expected:
        create_table(client, schema(cache_name), cache_name, CacheSpec(other, 8))
    assert of_name(client, cache_name) == ([cache_name], [cache_name])
    assert client.sql(f'SELECT ID, LABEL FROM "{cache_name}"').fetchall() == [(1, 2)]


@pytest.mark.parametrize("number", [1, 2])
def test_tables_of_statements_are_made_all_or_none(client, cache_name, number):
    """Interrupted at the first or the second of two; a table that was there before stays."""
    there = cache_name.upper()
    client.sql(f'CREATE TABLE "{there}" (ID BIGINT PRIMARY KEY, V INT)')
    client.sql(f'INSERT INTO "{there}" (ID, V) VALUES (1, 2)')
    texts = [f"CREATE TABLE IF NOT EXISTS {there} (ID BIGINT PRIMARY KEY, V INT)"]
    texts += [f"CREATE TABLE {there}_{n} (ID BIGINT PRIMARY KEY, V INT)" for n in (1, 2)]
    for moment in MOMENTS:
        with interrupted(f"{there}_{number}", moment):
            create_tables(client, ";\n".join(texts), name=there)
        assert of_tables(client, there) == [there]
        with interrupted(f"{there} ", moment):
            create_tables(client, texts[0], name=there)
        assert of_tables(client, there) == [there]
    assert client.sql(f'SELECT ID, V FROM "{there}"').fetchall() == [(1, 2)]
    client.sql(f'DROP TABLE "{there}"')


def of_tables(client, name):
    """Tables whose names begin so, also a moment later."""
    time.sleep(0.2)
    return [t["table"] for t in list_tables(client) if t["table"].startswith(name)]


LOADS = {
    "rows": {},
    "blocks": {"layout": "blocks"},
    "slim table": {"layout": "blocks", "index": ["LABEL"]},
}


def test_a_resume_that_was_killed_between_two_removals_is_repeated(client, cache_name, monkeypatch):
    """It begins anew where nothing is stored; the slim table then was left without its blocks."""

    def away(*given, **options):
        raise ConnectError("away")

    columns = {"LABEL": np.arange(10)}
    options = {"client": client, "partitions": 2, **LOADS["slim table"]}
    with monkeypatch.context() as patch, pytest.raises(LoadInterrupted):
        patch.setattr(run, "Filler", away)
        load_dataset(columns, cache_name, **options)
    client.destroy_cache(cache_name)
    assert load_dataset(columns, cache_name, if_exists="resume", **options).rows == 10
    assert client.sql(f'SELECT COUNT(*) FROM "{cache_name}"').fetchall() == [(10,)]


@pytest.mark.parametrize("if_exists", ["error", "resume"])
@pytest.mark.parametrize("kind", LOADS)
def test_a_load_that_was_making_its_cache_is_repeated(client, cache_name, kind, if_exists):
    options = {"client": client, "partitions": 4, **LOADS[kind]}
    name = f"{cache_name}_INDEX" if kind == "slim table" else cache_name
    for moment in (0.0, 0.03, "answered"):
        with interrupted(name, moment):
            load_dataset(rows(), cache_name, **options)
        assert of_name(client, cache_name) == ([], [])
        assert read_journal(client, cache_name) is None
        assert read_manifest(client, cache_name) is None
    report = load_dataset(rows(), cache_name, if_exists=if_exists, **options)
    assert (report.rows, report.resumed_rows) == (ROWS, 0)
    assert read_manifest(client, cache_name).rows == ROWS


@pytest.mark.parametrize(
    ("kind", "if_exists"), [("staging", "replace"), ("name", "replace"), ("name", "resume")]
)
def test_a_replacement_that_was_making_a_cache_is_repeated(client, cache_name, kind, if_exists):
    """Whether it makes the cache beside, or the one that takes the name."""
    load_dataset(rows(), cache_name, client=client, partitions=4)
    name = f"{cache_name}__NEXT_" if kind == "staging" else f'"{cache_name}__ROWS"'
    with interrupted(name, 0.0):
        load_dataset(rows(1000), cache_name, client=client, if_exists="replace")
    manifest = read_manifest(client, cache_name)
    if kind == "staging":
        # Nothing of it is left, so that the old rows are all there is.
        assert (manifest.cache, manifest.rows) == (cache_name, ROWS)
        assert of_name(client, cache_name)[0] == [cache_name]
        assert read_journal(client, cache_name) is None
    else:
        assert manifest.cache.startswith(f"{cache_name}__NEXT_") and manifest.rows == ROWS
        assert of_name(client, cache_name) == ([manifest.cache], [cache_name])
        assert read_journal(client, cache_name).phase == "move"
    load_dataset(rows(1000), cache_name, client=client, if_exists=if_exists)
    assert of_name(client, cache_name) == ([cache_name], [cache_name])
    found = client.sql(f'SELECT COUNT(*), MIN(LABEL) FROM "{cache_name}"').fetchall()
    assert found == [(ROWS, 1000)]


@pytest.mark.parametrize("asked", range(5))
def test_an_interruption_of_a_writers_end_leaves_no_thread(client, cache_name, monkeypatch, asked):
    """It comes when the two connections have been asked so often to flush, and then to end."""
    create_cache(client, CacheSpec(cache_name, 8))
    of_rows = schema(cache_name)
    register_types(client, of_rows)
    put, puts = Writer._put, []

    def interrupt(writer, item, line):
        ends = item is None or isinstance(item, Flush)
        if ends and len(puts) == asked:
            raise KeyboardInterrupt
        put(writer, item, line)
        puts.extend([item] * ends)
        if len(puts) == asked == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "_put", interrupt)
    begin, before = time.monotonic(), set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), Writer(client, cache_name, of_rows) as writer:
        columns = {name: Dense(values) for name, values in rows().items()}
        writer.write(Batch(Dense(np.arange(ROWS)), columns))
    assert time.monotonic() - begin < 5
    left = {t for t in set(threading.enumerate()) - before if t.name == "ignitetf-writer"}
    assert left == set()
