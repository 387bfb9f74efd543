"""Which statements are columns of a whole table, and nothing else."""

import pytest

from ignitetf.sql.projection import Projection, projection, table_of_view


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM t", (None, "T", None)),
        ("select\n*\tfrom T", (None, "T", None)),
        ("SELECT t.* FROM t", (None, "T", None)),
        ("SELECT x.* FROM t AS x", (None, "T", None)),
        ("SELECT a, b FROM t", (None, "T", ("A", "B"))),
        ('SELECT "a", b c, d AS "e" FROM p."t"', ("P", "t", ("a", "B", "D"))),
        ('SELECT x.a, x."b" FROM t x', (None, "T", ("A", "b"))),
        ('SELECT "DISTINCT" a FROM t', (None, "T", ("DISTINCT",))),
        ('SELECT "from" FROM t', (None, "T", ("from",))),
        ('SELECT a, a FROM "select"', (None, "select", ("A", "A"))),
    ],
)
def test_columns_of_a_table_are_recognized(statement, expected):
    assert projection(statement) == Projection(*expected)


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "SELECT",
        "SELECT FROM t",
        "SELECT * FROM",
        "SELECT 1",
        "SELECT 1 FROM t",
        "SELECT a + b FROM t",
        "SELECT a, * FROM t",
        "SELECT *, * FROM t",
        "SELECT COUNT(*) FROM t",
        "SELECT DISTINCT a, b c FROM t WHERE a = 1",
        "SELECT DISTINCT a AS b c FROM t",
        "SELECT DISTINCT a FROM t",
        "SELECT ALL a FROM t",
        "SELECT TOP 3 a FROM t",
        "SELECT u.a FROM t",
        "SELECT t.a FROM t x",
        "SELECT p.t.a FROM p.t",
        "SELECT a FROM t, u",
        "SELECT a FROM t JOIN u",
        "SELECT a FROM t x JOIN u",
        "SELECT a FROM t WHERE a = 1",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t LIMIT 1",
        "SELECT a FROM t x LIMIT 1",
        "SELECT a FROM (SELECT a FROM u)",
        "SELECT (SELECT a FROM t) FROM u",
        "SELECT a FROM t UNION SELECT a FROM u",
        "SELECT a FROM t;",
        "SELECT a FROM t; SELECT a FROM u",
        "SELECT /*+ hint */ a FROM t",
        "SELECT a FROM t -- all",
        "SELECT a FROM t USE INDEX (i)",
        "SELECT a FROM c.p.t",
        "SELECT a FROM 't'",
        "SELECT 'a' FROM t",
        'SELECT "a FROM t',
        "WITH t AS (SELECT 1) SELECT a FROM t",
        "EXPLAIN SELECT a FROM t",
        "VALUES (1)",
    ],
)
def test_anything_else_is_not(statement):
    assert projection(statement) is None


def test_only_the_view_of_a_data_set_stands_for_its_table():
    assert table_of_view('SELECT * FROM "mnist__ROWS"') == "mnist__ROWS"
    for other in ('SELECT * FROM "mnist"', 'SELECT A FROM "mnist__ROWS"', "SELECT 1"):
        assert table_of_view(other) is None
