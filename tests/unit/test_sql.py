"""Statements by name: what may be filled in, and where a statement ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf import sql
from ignitetf.errors import ConfigError

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", sql.names())
def test_every_file_has_statements(name):
    assert list(sql.split(sql.text_of(name)))


def test_tables_are_files():
    assert set(sql.TABLES) <= set(sql.names())


def test_voc_keeps_boxes_beside_their_image():
    text = sql.statement("voc", name="V", options={"TEMPLATE": "p8", "BACKUPS": 1})
    images, boxes = sql.split(text)
    assert "PRIMARY KEY (IMAGE_ID, N)" in boxes
    assert "AFFINITY_KEY=IMAGE_ID,TEMPLATE=p8,BACKUPS=1" in boxes
    assert "CACHE_NAME=V_IMAGES,VALUE_TYPE=V_IMAGES,TEMPLATE=p8" in images


def test_lists_and_types():
    text = sql.statement(
        "create_table",
        table="T",
        cache="t-1",
        columns=[("ID", "BIGINT"), ("D", "DECIMAL(10,2) NOT NULL")],
        key=["ID"],
        options={"BACKUPS": 1, "WRAP_VALUE": False},
    )
    assert '"T" ("ID" BIGINT, "D" DECIMAL(10,2) NOT NULL, PRIMARY KEY ("ID"))' in text
    assert "CACHE_NAME=t-1,BACKUPS=1,WRAP_VALUE=false" in text


BAD_NAMES = ['a"b', "a'b", "a b", "a,b", "a=b", "a;b", "1a", "", "a\nb", "a--\n", "ä", "{x}", "a)"]


@pytest.mark.parametrize("value", BAD_NAMES)
@pytest.mark.parametrize("place", ["schema", "table"])
def test_only_names_may_stand_in_sql(place, value):
    values = {"schema": "PUBLIC", "table": "T", place: value}
    with pytest.raises(ConfigError):
        sql.statement("drop_table", **values)


@pytest.mark.parametrize("kind", ["INT) --", "int", "INT, X INT", "INT; DROP", ""])
def test_only_types_may_stand_in_columns(kind):
    with pytest.raises(ConfigError):
        sql.fill("({columns})", columns=[("A", kind)])


@pytest.mark.parametrize("options", [{"A": 'x"'}, {"A,B": 1}, {"A": "x,BACKUPS=3"}])
def test_only_names_may_stand_in_options(options):
    with pytest.raises(ConfigError):
        sql.fill("{options}", options=options)


@given(st.text())
def test_a_filled_name_never_leaves_its_quotes(value):
    try:
        text = sql.statement("drop_table", schema="PUBLIC", table=value)
    except ConfigError:
        return
    assert text.strip() == f'DROP TABLE "PUBLIC"."{value}"'
    assert value.isascii()
    assert not set(value) & set("\"' ;,=(){}\n")


def test_a_place_without_value_is_an_error():
    with pytest.raises(ConfigError, match="table"):
        sql.statement("drop_table", schema="PUBLIC")


def test_unknown_statement_names_the_known():
    with pytest.raises(ConfigError) as caught:
        sql.statement("no_such")
    assert "mnist" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1;", ["SELECT 1"]),
        (" A ;\n\nB; ", ["A", "B"]),
        ("SELECT ';' ; B", ["SELECT ';'", "B"]),
        ("SELECT 'it''s;' ; B", ["SELECT 'it''s;'", "B"]),
        ('SELECT "a;""b" ; B', ['SELECT "a;""b"', "B"]),
        ("A -- x; y\n; B", ["A -- x; y", "B"]),
        ("A /* ; ' */ ; B", ["A /* ; ' */", "B"]),
        ("A - 1 / 2; B", ["A - 1 / 2", "B"]),
        ("SELECT 'open; B", ["SELECT 'open; B"]),
        ("-- only; this", []),
        ("/* open ;", []),
        (";;; ", []),
        ("", []),
        ("'x'", ["'x'"]),
    ],
)
def test_split(text, statements):
    assert list(sql.split(text)) == statements


@given(st.lists(st.text("ab ';\"-/*\n", max_size=12), max_size=5))
def test_split_loses_nothing_but_separators(parts):
    text = ";".join(parts)
    kept = "".join("".join(sql.split(text)).split())
    whole = iter(text)
    assert all(char in whole for char in kept), "the statements are a subsequence of the text"


@pytest.mark.parametrize(
    ("text", "bare"),
    [("-- c\n /* d */ SELECT", "SELECT"), ("SELECT -- c", "SELECT -- c"), ("-- c", "")],
)
def test_bare(text, bare):
    assert sql.bare(text) == bare
