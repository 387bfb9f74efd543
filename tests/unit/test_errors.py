"""What an error says: its hint in tracebacks, its place once, nothing of Java's classes."""

import copy
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf import errors
from ignitetf.errors import (
    ConfigError,
    IgniteTFError,
    SchemaError,
    ServerError,
    ServerOverloaded,
    SqlError,
)
from ignitetf.net.failures import plain_text, server_error

pytestmark = pytest.mark.core

CLASSES = [getattr(errors, name) for name in errors.__all__]
HINT = "what to do about it"


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_traceback_shows_the_hint_once(kind):
    assert shown(kind("what", hint=HINT)).count(HINT) == 1
    assert "hint" not in shown(kind("what"))
    # Also where a place was added: cause and error are both in the traceback.
    try:
        try:
            raise kind("what", hint=HINT)
        except IgniteTFError as error:
            raise error.at("T, partition 3") from error
    except IgniteTFError as error:
        assert shown(error).count(HINT) == 1


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("same", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_are_whole(kind, same):
    error = kind("what", hint=HINT, cache="T", rows=3)
    error.__notes__.append("a note of the caller's")
    found = same(error)
    assert type(found) is kind
    assert (found.message, found.hint, found.fields) == ("what", HINT, {"cache": "T", "rows": 3})
    assert found.__notes__ == [f"hint: {HINT}", "a note of the caller's"]
    assert found.__notes__ is not error.__notes__
    assert not hasattr(same(kind("what")), "__notes__")


PARTS = ["T", "partition 3", "entry 5", "key 7"]


@given(st.lists(st.integers(1, len(PARTS)), max_size=5), st.integers(0, len(PARTS)))
def test_a_place_is_said_once_whoever_adds_it(added, named):
    """In whatever order larger and smaller parts are added, and to what the message names."""
    message = ": ".join([*([", ".join(PARTS[:named])] if named else []), "field 'V' is null"])
    error = SchemaError(message, hint=HINT, record=5)
    for count in added:
        error = error.at(", ".join(PARTS[:count]), cache="T")
    smallest = max([named, *added])
    expected = ": ".join(
        [*([", ".join(PARTS[:smallest])] if smallest else []), "field 'V' is null"]
    )
    assert error.message == str(error) == expected
    assert error.hint == HINT
    assert error.fields == {"record": 5, **({"cache": "T"} if added else {})}


def test_another_place_is_no_repetition():
    error = ConfigError("T2: no rows").at("T")
    assert error.message == "T: T2: no rows"


SAID = {
    "class org.apache.ignite.IgniteCheckedException: Index 0 out of bounds for length 0": (
        "Index 0 out of bounds for length 0"
    ),
    '42000: Failed to parse query. Table "NOPE" not found; SQL statement:\nSELECT * [42102-197]': (
        'Table "NOPE" not found'
    ),
    "50000: Failed to execute map query on remote node [nodeId=95c5fe59-6d93-4da4-971f-a5a480d8338d,"
    ' errMsg=Division by zero: "0" [22012-197]]': 'Division by zero: "0"',
    "50000: Failed to execute map query on remote node [nodeId=808b3d57-d238-4da9-a48f-8f38bc4aa08b,"
    ' errMsg=Column "T__Z0.NAME" must be in the GROUP BY list; SQL statement:\nSELECT\nT__Z0.NAME'
    " __C0_0,\nCOUNT(*) __C0_1\nFROM PUBLIC.T__ROWS T__Z0 [90016-197]]": (
        'Column "T.NAME" must be in the GROUP BY list'
    ),
    "javax.cache.CacheException: class org.apache.ignite.internal.processors.query."
    "IgniteSQLException: Failed to run: Failed to run": "Failed to run",
    "Value conversion failed [column=V, from=java.lang.String, to=java.lang.Integer]": (
        "Value conversion failed [column=V, from=java.lang.String, to=java.lang.Integer]"
    ),
    "Cache transaction timed out: GridNearTxLocal[xid=81b0, mappings=IgniteTxMappingsImpl []]": (
        "Cache transaction timed out"
    ),
    "Failed to acquire lock within provided timeout for transaction [timeout=300,"
    " tx=GridNearTxLocal [xid=81b0]]": (
        "Failed to acquire lock within provided timeout for transaction"
    ),
    "Cache does not exist [cacheId= 84]": "Cache does not exist [cacheId= 84]",
    " \n": "",
}


@pytest.mark.parametrize(("raw", "text"), SAID.items())
def test_what_a_node_says_is_told_plainly(raw, text):
    assert plain_text(raw) == text
    error = server_error(1, raw)
    assert error.message == (text or "status 1")
    assert error.server_message == raw  # for programs


def test_an_error_of_sql_is_one_wherever_it_was_evaluated():
    kinds = [type(server_error(1, raw)) for raw in SAID]
    assert kinds == [ServerError, *4 * [SqlError], *5 * [ServerError]]


@pytest.mark.parametrize(
    ("said", "way"),
    [("Java heap space", "-Xmx"), ("GC overhead limit exceeded", "-Xmx"),
     ("Out of memory in data region [name=default]", "--memory")],
)  # fmt: skip
def test_what_is_short_of_memory_is_told_how_to_get_more_of_it(said, way):
    error = server_error(1, f"java.lang.OutOfMemoryError: {said}")
    assert isinstance(error, ServerOverloaded) and way in error.hint
