"""Which conditions the node may evaluate partition by partition, and what SQL text is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf import sql
from ignitetf.errors import ConfigError
from ignitetf.read.selection import Table, parse_condition
from ignitetf.sql.tokens import count_parameters, is_query, tokens

pytestmark = pytest.mark.core

T = Table("PUBLIC", "T", frozenset(["ID", "LABEL", "X", "DATE", "select", "_KEY", "_VAL"]))


@given(st.text("ab1 .'\"`;-/*\n\r?$()", max_size=30))
def test_tokens_are_the_text(text):
    found = list(tokens(text))
    assert "".join(t.text for t in found) == text
    assert all(text[t.start :].startswith(t.text) for t in found)


@pytest.mark.parametrize(
    "condition",
    [
        "LABEL < 5",
        "LABEL < 5 -- note (SELECT 1)",
        "LABEL < 5 // note",
        "LABEL /* (SELECT */ < 5",
        '"select" = 1',
        "t.label = Public.T.id AND \"PUBLIC\".\"T\".X LIKE '%(SELECT%' ESCAPE '!'",
        "X IN (1, 2.5e3, NULL) OR X IS NOT NULL OR NOT (ID BETWEEN 1 AND -2)",
        "UPPER(X) || 'a' = CASE WHEN ID > 1 THEN 'b' ELSE LOWER('C') END",
        "CAST(X AS DOUBLE PRECISION) > 1 AND CAST(ID AS DECIMAL(10, 2)) <> 1",
        "DATE > DATE '2020-01-01' AND X = X'00ff' AND X < TIMESTAMP '2020-01-01 00:00:00'",
        "_KEY = ? AND `ID` = ?",
    ],
)
def test_what_looks_at_one_row_only(condition):
    found = parse_condition(condition, (1,) * (count_parameters(condition) or 0), T)
    assert found.by_row
    assert "note" not in found.text
    assert "/*" not in found.text


@pytest.mark.parametrize(
    "condition",
    [
        "X = (SELECT 1)",
        "X IN (select LABEL FROM W)",
        "EXISTS (SELECT 1)",
        "X IN (VALUES (1), (2))",
        "X IN (FROM W SELECT 1)",
        "SUM(X) > 1",
        "MYFUNCTION(X) = 1",
        '"MYFUNCTION"(X) = 1',
        "W.LABEL = 1",
        "S.T.LABEL = 1",
        "NOT_A_COLUMN = 1",
        '"LIKE" = 1',
        "SELECT = 1",
        '"label" = 1',
        "X && X",
        "{fn LENGTH(X)} = 1",
        "X = ALL (X)",
        "X[1] = 2",
    ],
)
def test_what_is_not_known_to_is_left_to_one_statement(condition):
    assert not parse_condition(condition, (), T).by_row


OPEN = ["'", '"', "/*", "(", ")", ";", "`"]


@given(st.lists(st.sampled_from([*OPEN, "X", "=", " ", "1", "--", "\n", "*/", "OR"]), max_size=12))
def test_a_condition_stays_between_its_parentheses(parts):
    """Between parentheses, and with a table behind it, it is the same tokens as alone."""
    text = "".join(parts)
    try:
        found = parse_condition(text, (), T)
    except ConfigError:
        return
    whole = f"({found.text}) AND 'end' = 'end'"
    inner = [t for t in tokens(whole) if t.kind != "space"]
    assert [t.text for t in inner[-4:]] == ["AND", "'end'", "=", "'end'"]
    depth = 0
    for token in inner[:-4]:
        depth += (token.text == "(") - (token.text == ")")
        assert depth > 0 or token is inner[-5]
    assert len(list(sql.split(whole))) == 1


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1", True),
        ("-- c\n /* d */ (select 1)", True),
        ("with a as (select 1) select 1", True),
        ("EXPLAIN SELECT 1", True),
        ("INSERT INTO T SELECT 1", False),
        ("create index i on t (a)", False),
        ("", False),
    ],
)
def test_queries_are_told_from_changes(text, query):
    assert is_query(text) is query


@pytest.mark.parametrize(
    ("text", "count"),
    [("? '?' \"?\" -- ?", 1), ("?, /* ? */ ?", 2), ("?1 + ?1", None), ("'?", None), ("1", 0)],
)
def test_parameters_are_counted(text, count):
    assert count_parameters(text) == count
