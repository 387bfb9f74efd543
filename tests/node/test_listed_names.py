"""What a list names works when it is given back as plain text."""

import json
import os

import pytest
import sqlalchemy as sa
from pyignite import GenericObjectMeta
from pyignite.datatypes import IntObject, prop_codes
from typer.testing import CliRunner

from ignitetf import load_dataset, open_rows
from ignitetf.cli.main import app
from ignitetf.errors import CacheNotFound
from ignitetf.explore.head import first_rows
from ignitetf.explore.stats import dataset_stats
from ignitetf.export.export import export_dataset
from ignitetf.fs.store import Store
from ignitetf.tables.describe import describe, describe_table, list_caches, list_tables
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node
TAG = f"ln{os.getpid()}"
TABLES = (f"{TAG.upper()}_PLAIN", f"{TAG}_small", f"{TAG} With Blank", f"{TAG}.Dotted", f"{TAG}'s")
SHARED = f"{TAG}_cache"  # its schema is in small letters, too


def two_tables():
    fields = [("id", True), ("orderId", False)]
    return {
        prop_codes.PROP_NAME: SHARED,
        prop_codes.PROP_QUERY_ENTITIES: [
            {
                "table_name": table,
                "key_field_name": "id",
                "key_type_name": "java.lang.Integer",
                "field_name_aliases": [],
                "query_fields": [
                    {"name": name, "type_name": "java.lang.Integer", "is_key_field": is_key,
                     "is_notnull_constraint_field": False}
                    for name, is_key in fields
                ],
                "query_indexes": [],
                "value_type_name": f"{TAG}_{table}",
                "value_field_name": None,
            }
            for table in ("CATS", "DOGS")
        ],
    }  # fmt: skip


@pytest.fixture(scope="module")
def names(client):
    """Names of tables with rows, by schema; a data set; a view of a user."""
    for table in TABLES:
        client.sql(f'CREATE TABLE "{table}" (ID INT PRIMARY KEY, "v w" INT)').close()
        client.sql(f'INSERT INTO "{table}" (ID, "v w") VALUES (1, 2), (2, 3)').close()
    load_dataset([{"A": 1}, {"A": 2}], f"{TAG.upper()}_SET", client=client)
    cache = client.pyignite.create_cache(two_tables())
    for key, table in enumerate(("CATS", "CATS", "DOGS")):
        kind = GenericObjectMeta(f"{TAG}_{table}", (), {}, schema={"orderId": IntObject})
        cache.put(key, kind(orderId=key), key_hint=IntObject)
    client.sql(f'CREATE VIEW {TAG}_VIEW AS SELECT ID FROM "{TABLES[0]}"').close()
    yield
    client.sql(f"DROP VIEW {TAG}_VIEW").close()
    cache.destroy()
    for row in list_caches(client):
        if TAG in row["name"].lower():
            drop_cache(client, row["name"])


def listed(client):
    """Every name of ours in the lists of caches, tables and SYS, with the rows it stands for."""
    rows = [row for row in list_tables(client) if TAG in f"{row['schema']}{row['table']}".lower()]
    for row in rows:
        for name in (row["table"], f"{row['schema']}.{row['table']}"):
            yield name, row["rows"]
    for schema, table in client.sql("SELECT SCHEMA_NAME, TABLE_NAME FROM SYS.TABLES"):
        if TAG in f"{schema}{table}".lower():
            yield f"{schema}.{table}", 1 if table == "DOGS" else 2
    for row in list_caches(client):
        if TAG in row["name"].lower() and row["name"] != SHARED:
            yield row["name"], 2


def test_names_of_lists_are_read_described_and_exported(client, names, tmp_path, address):
    found = dict(listed(client))
    assert len(found) >= 2 * len(TABLES) + 6
    for name, rows in found.items():
        assert len(first_rows(client, name, 10)) == rows, name
        assert dataset_stats(client, name).rows == rows, name
        assert sum(len(part["key"]) for part in open_rows(name, address).numpy()) == rows, name
        assert describe(client, name)["fields"], name
        report = export_dataset(name, str(tmp_path / "x.parquet"), client=client, overwrite=True)
        assert report.rows == rows, name


def test_an_export_needs_no_client_and_takes_a_table(names, tmp_path, address, monkeypatch):
    monkeypatch.setenv("IGNITETF_ADDRESS", address)
    assert export_dataset(TABLES[2], str(tmp_path / "x.parquet")).rows == 2
    words = ["export", f"PUBLIC.{TABLES[3]}", str(tmp_path / "y.parquet")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_a_table_is_counted_and_described_for_itself(client, names):
    rows = {row["table"]: row["rows"] for row in list_tables(client) if row["schema"] == SHARED}
    assert rows == {"CATS": 2, "DOGS": 1}
    # A cache has fields, by which it is read; a table has columns.
    fields = {row["name"]: row["column"] for row in describe(client, f"{SHARED}.DOGS")["fields"]}
    assert fields["orderId"] == "ORDERID"
    assert "orderId" in first_rows(client, f"{SHARED}.DOGS", 1)[0]
    columns = describe_table(client, f"{SHARED}.DOGS")
    assert columns["table"] == "DOGS"
    assert {row["name"] for row in columns["fields"]} == {"ID", "ORDERID"}


def test_a_view_is_refused_as_one(client, names):
    for name in (f"{TAG}_VIEW", f"PUBLIC.{TAG}_VIEW".upper(), "SYS.NODES"):
        with pytest.raises(CacheNotFound, match="SQL view") as refused:
            open_rows(name, client.settings.addresses)
        assert "query" in refused.value.hint


def test_files_that_are_listed_are_read(client, names, address):
    store = Store(client)
    known = {"a b.c": "1", "Ünï 'x'": "2", "#?%41": "3"}
    store.make_directory(f"/{TAG}")
    for name, text in known.items():
        file = store.open_write(f"/{TAG}/{name}", "w")
        file.write(memoryview(text.encode()))
        file.close()
    run = CliRunner(env={"IGNITETF_ADDRESS": address}).invoke
    found = json.loads(run(app, ["fs", "ls", f"igfs:///{TAG}", "--output", "json"]).stdout)
    paths = [row["name"] for row in found]
    assert len(paths) == len(known)
    texts = {run(app, ["fs", "cat", f"igfs://{path}"]).stdout.strip() for path in paths}
    assert texts == set(known.values())
    assert run(app, ["fs", "rm", "-r", f"igfs:///{TAG}"]).exit_code == 0
    store.close()


def test_the_inspectors_names_are_reflected(names, address):
    engine = sa.create_engine(f"ignite://{address}/PUBLIC")
    inspector = sa.inspect(engine)
    seen = 0
    for schema in map("{:s}".format, inspector.get_schema_names()):
        tables = [*inspector.get_table_names(schema), *inspector.get_view_names(schema)]
        for name in map("{:s}".format, tables):
            if TAG not in f"{schema}{name}".lower():
                continue
            seen += 1
            for method in ("get_columns", "get_pk_constraint", "get_indexes", "get_table_comment",
                           "get_table_options", "get_foreign_keys"):  # fmt: skip
                getattr(inspector, method)(name, schema=schema)
            table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=engine)
            with engine.connect() as connection:
                assert connection.execute(sa.select(table)).fetchall(), (schema, name)
    assert seen >= len(TABLES) + 4
    assert inspector.get_materialized_view_names() == inspector.get_sequence_names() == []
    engine.dispose()
