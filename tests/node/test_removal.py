"""After clear or drop no name of a data set answers anything, from whatever state it began."""

import contextlib

import numpy as np
import pytest
from helpers.dying import Death
from pyignite.datatypes import prop_codes

from ignitetf import drop_dataset
from ignitetf.errors import (
    CacheNotFound,
    ConfigError,
    IgniteTFError,
)
from ignitetf.load.journal import read_journal
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows
from ignitetf.tables.catalog import SEPARATOR, catalog, read_manifest
from ignitetf.tables.lease import Holder
from ignitetf.tables.removal import clear_cache, drop_cache, drop_table

pytestmark = pytest.mark.node

ROWS = 40
SLIM = {"layout": "blocks", "index": ("LABEL",), "partitions": 2}
LAYOUTS = {"rows": {"partitions": 2}, "slim table": SLIM}


def rows(start=0):
    return {"IMAGE": np.zeros((ROWS, 4), np.uint8), "LABEL": np.arange(start, start + ROWS)}


def load(client, name, start=0, **options):
    return load_dataset(rows(start), name, client=client, **options)


def broken():
    for label in range(3000):
        yield {"IMAGE": b"abcd", "LABEL": label}
    raise KeyboardInterrupt


# Ways to get into a state


def stopped(client, name, **options):
    with contextlib.suppress(KeyboardInterrupt):
        load_dataset(broken(), name, client=client, **options)
    assert read_journal(client, name) is not None


def stopped_replacement(client, name, **options):
    load(client, name, **options)
    stopped(client, name, if_exists="replace", **options)


def table_dropped(client, name, **options):
    load(client, name, **options)
    table = f"{name}__ROWS" if "layout" not in options else f"{name}_INDEX__ROWS"
    client.sql(f'DROP TABLE "{table}"').close()


def view_dropped(client, name, **options):
    load(client, name, **options)
    client.sql(f'DROP VIEW "{name}"').close()


def cache_destroyed(client, name, **options):
    """By a client of another kind, which knows nothing of tables and catalogs."""
    load(client, name, sql=False, **options)
    client.destroy_cache(name)


def manifest_damaged(client, name, **options):
    load(client, name, **options)
    catalog(client).put(name, "[")


def only_a_lease(client, name, **options):
    catalog(client).put(f"{name}{SEPARATOR}lease", of_ended_process())


def of_ended_process():
    holder = Holder.of_this_process("load").to_text()
    return holder.replace(f'"started":{Holder.of_this_process("load").started}', '"started":1.0')


def load_of_two_kinds(client, name, **options):
    """Blocks with a slim table are replaced by rows, and the process dies."""
    load(client, name, **options)
    with contextlib.suppress(KeyboardInterrupt):
        load_dataset(broken(), name, client=client, partitions=4, if_exists="replace")


STATES = [
    load,
    stopped,
    stopped_replacement,
    table_dropped,
    view_dropped,
    manifest_damaged,
    only_a_lease,
    load_of_two_kinds,
]


# What holds afterwards


def answers(client, name):
    """Numbers of rows that the names of a data set tell, in every way that gives some."""
    found = {}
    for view in (name, f"{name}_INDEX", f"{name}__ROWS", f"{name}_INDEX__ROWS"):
        with contextlib.suppress(IgniteTFError):
            found[view] = client.sql(f'SELECT COUNT(*) FROM "{view}"').fetchall()[0][0]
    with contextlib.suppress(IgniteTFError):
        found["rows"] = len(open_rows(name, client=client))
    for cache in client.cache_names():
        if cache.startswith(name):
            found[f"cache {cache}"] = client.cache_size(cache)
    return {name: number for name, number in found.items() if number}


def require_gone(client, name):
    assert [n for n in client.cache_names() if n.startswith(name)] == []
    views = client.sql("SELECT NAME FROM SYS.VIEWS WHERE SCHEMA = 'PUBLIC'").fetchall()
    assert [view for (view,) in views if view.startswith(name)] == []
    tables = client.sql("SELECT TABLE_NAME FROM SYS.TABLES").fetchall()
    assert [table for (table,) in tables if table.startswith(name)] == []
    assert [n for n in catalog(client).all() if n.startswith(name)] == []


def require_dropped(client, name):
    require_gone(client, name)
    for gone in (drop_cache, drop_table, clear_cache):
        with pytest.raises(CacheNotFound):
            gone(client, name)


def require_cleared(client, name, **options):
    assert answers(client, name) == {}
    assert read_journal(client, name) is None
    with contextlib.suppress(CacheNotFound):  # nothing is left of what was not whole
        clear_cache(client, name)
    assert answers(client, name) == {}


def require_usable(client, name, **options):
    load(client, name, 7, **{**options, "if_exists": options.get("if_exists", "error")})
    shown = client.sql(f"SELECT COUNT(*), MIN(LABEL) FROM {name}").fetchall()
    assert (len(open_rows(name, client=client)), shown) == (ROWS, [(ROWS, 7)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state", STATES)
def test_nothing_answers_after_a_drop(client, cache_name, state, layout):
    state(client, cache_name, **LAYOUTS[layout])
    drop_cache(client, cache_name)
    require_dropped(client, cache_name)
    require_usable(client, cache_name, **LAYOUTS[layout])


def test_a_data_set_that_is_missing_is_told_unless_it_may_be(client, cache_name):
    load(client, cache_name)
    drop_dataset(cache_name, client=client)
    require_dropped(client, cache_name)
    with pytest.raises(CacheNotFound, match=cache_name):
        drop_dataset(cache_name, client=client)
    drop_dataset(cache_name, client=client, missing_ok=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state", STATES)
def test_nothing_answers_after_a_clear(client, cache_name, state, layout):
    state(client, cache_name, **LAYOUTS[layout])
    with contextlib.suppress(CacheNotFound):
        clear_cache(client, cache_name)
    require_cleared(client, cache_name)
    require_usable(client, cache_name, **LAYOUTS[layout], if_exists="replace")
    drop_cache(client, cache_name)
    require_dropped(client, cache_name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_can_be_appended_after_a_clear(client, cache_name, layout):
    options = LAYOUTS[layout]
    load(client, cache_name, **options)
    clear_cache(client, cache_name)
    manifest = read_manifest(client, cache_name)
    assert (manifest.rows, manifest.version) == (0, 2)
    load(client, cache_name, 7, if_exists="append", **options)
    assert len(open_rows(cache_name, client=client)) == ROWS
    shown = client.sql(f"SELECT COUNT(*), MIN(LABEL) FROM {cache_name}").fetchall()
    assert shown == [(ROWS, 7)]


def dies(client, monkeypatch, at, work):
    """Run `work` in a client that dies before a change, the `at`th; gives whether it died."""
    with (
        connect(settings=client.settings.replace(idle_timeout_s=0.1)) as other,
        monkeypatch.context() as patch,
    ):
        death = Death(patch, other, at)
        try:
            work(other)
        except (KeyboardInterrupt, IgniteTFError):
            assert death.dead
        finally:
            died, death.dead = death.dead, True
    # Its process is not ours, so that its lease would have expired.
    catalog(client).delete(f"{catalog_name(client, work)}{SEPARATOR}lease")
    return died


def catalog_name(client, work):
    return work.__defaults__[0]


WORKS = {
    "load": lambda client, name, options: load(client, name, **options),
    "replacement": lambda client, name, options: load(
        client, name, 1000, **{**options, "if_exists": "replace"}
    ),
    "clear": lambda client, name, options: clear_cache(client, name),
    "drop": lambda client, name, options: drop_cache(client, name),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("work", WORKS)
def test_of_what_was_killed_at_any_step(client, cache_name, monkeypatch, work):
    """Before each change in turn; what is left is dropped, or cleared and then dropped."""
    for at in range(1, 100):
        if work != "load":
            load(client, cache_name, **SLIM)

        def run(other, name=cache_name):
            WORKS[work](other, name, SLIM)

        died = dies(client, monkeypatch, at, run)
        with contextlib.suppress(CacheNotFound):
            if at % 2:
                clear_cache(client, cache_name)
                require_cleared(client, cache_name)
            drop_cache(client, cache_name)
        require_gone(client, cache_name)
        if not died:
            break
    assert 3 < at < 40


def test_a_cache_of_java_is_removed_whichever_schema_its_table_is_in(client, cache_name):
    """`DROP TABLE` takes only what `CREATE TABLE` has made."""
    for schema in ("PUBLIC", cache_name):
        client.pyignite.create_cache(
            {
                prop_codes.PROP_NAME: cache_name,
                prop_codes.PROP_SQL_SCHEMA: schema,
                prop_codes.PROP_QUERY_ENTITIES: [entity(f"{cache_name}_T")],
            }
        )
        drop_cache(client, cache_name)
        require_gone(client, cache_name)


def entity(table):
    return {
        "table_name": table,
        "key_field_name": "ID",
        "key_type_name": "java.lang.Long",
        "value_field_name": None,
        "value_type_name": f"{table}_VALUE",
        "field_name_aliases": [],
        "query_fields": [
            {"name": "ID", "type_name": "java.lang.Long"},
            {"name": "V", "type_name": "java.lang.Integer"},
        ],
        "query_indexes": [],
    }


def test_what_only_has_a_name_like_one_of_ours_stays(client, cache_name):
    """A data set and caches of others, beside one that is dropped."""
    index, others = f"{cache_name}_INDEX", [f"{cache_name}__SWITCH", f"{cache_name}_TEST"]
    load(client, cache_name, partitions=2)
    load(client, index, 5, partitions=2)
    for other in others:
        client.pyignite.create_cache(other).put(1, 2)
    clear_cache(client, cache_name)
    drop_cache(client, cache_name)
    left = {n for n in client.cache_names() if n.startswith(cache_name)}
    assert left == {index, *others}
    assert len(open_rows(index, client=client)) == ROWS
    assert client.sql(f"SELECT MIN(LABEL) FROM {index}").fetchall() == [(5,)]
    clear_cache(client, index)
    assert read_manifest(client, index).rows == 0
    drop_cache(client, index)


def test_a_part_of_a_data_set_is_not_cleared_by_itself(client, cache_name):
    load(client, cache_name, **SLIM)
    with pytest.raises(ConfigError, match="its rows would stay"):
        clear_cache(client, f"{cache_name}_INDEX")
    shown = client.sql(f"SELECT COUNT(*) FROM {cache_name}").fetchall()
    assert (len(open_rows(cache_name, client=client)), shown) == (ROWS, [(ROWS,)])
