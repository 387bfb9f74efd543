"""The rows of a SELECT as records; joins and expressions are allowed.

cluster -> pages of rows -> **columns by their types on the wire** -> Batch

The types are found from the values that the node sends. A column with the name of a field of a data
set in the statement gets the shape of that field, if the first rows have it.

A SELECT may return its rows in another order each time, so a stopped load cannot be resumed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ignitetf.errors import ConfigError, SchemaError, ServerError, SourceError
from ignitetf.load.sources.base import keys_of
from ignitetf.load.sources.location import Place
from ignitetf.load.sources.tabular import Table, TableOptions
from ignitetf.net.binary_types import with_types
from ignitetf.net.client import Client
from ignitetf.net.client import connect as connect_by_settings
from ignitetf.net.results import only_value
from ignitetf.sql.tokens import is_query
from ignitetf.tables.catalog import list_manifests
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.columns import Batch, Column
from ignitetf.wire.datatypes import ARRAY_ELEMENT
from ignitetf.wire.decode import decode_column
from ignitetf.wire.frames import Page, read_first_sql_page, read_page
from ignitetf.wire.infer import Evidence, infer_schema, observe_objects
from ignitetf.wire.objects import find_rows, unwrap
from ignitetf.wire.requests import cursor_request, sql_request
from ignitetf.wire.schema import BYTES, Field
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.zones import Zone

__all__ = ["SqlSource", "sql"]

_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 8192
_PAGE_BYTES: Final = 4 << 20
# Number of rows to read for the type of a column that begins with nulls.
_SAMPLE_ROWS: Final = 10_000
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_HINT_NAME: Final = "give the column a name of its own: SELECT ... AS NAME"


class SqlSource(Table):
    """The rows of one SELECT; every column except the key may have nulls."""

    resumable = False

    def __init__(
        self,
        statement: str,
        *,
        key: str | None = None,
        connect: Callable[[], Client] = connect_by_settings,
        bad_records: OnBadRecord = "fail",
    ) -> None:
        """Run the statement, and find the types from its first rows."""
        super().__init__(Place("the SELECT", "select"), TableOptions(key, bad_records=bad_records))
        if not is_query(statement):
            raise ConfigError(f"no SELECT: {statement[:60]!r}", hint="load sql takes one SELECT")
        self.statement = statement.strip().rstrip(";")
        self._connect = connect
        self._registry = TypeRegistry(lambda: self._zone)
        # Each opened source gets its own fingerprint, so no load resumes another.
        self._id = uuid.uuid4().hex
        with self._connect() as client:
            with client.sql(self.statement, page_size=1) as result:
                names = [name.upper() for name in result.columns]
            if alike := [name for name in names if names.count(name) > 1]:
                raise SourceError(f"two columns are called {alike[0]}", hint=_HINT_NAME)
            with contextlib.closing(self._pages(client, _FIRST_ROWS)) as pages:
                fields = self._infer(client, names, pages)
            self._take_fields(fields)

    @functools.cached_property
    def _zone(self) -> Zone:
        with self._connect() as client:
            return client.zone()

    def _infer(self, client: Client, names: list[str], pages: Iterable[Page]) -> list[Field]:
        """Return the fields of the columns."""
        seen = Evidence()
        seen.codes.add(int(TypeCode.OBJECT))
        children = [seen.child(name) for name in names]
        rows = size = 0
        for page in pages:
            for child, at in zip(children, _positions(page, len(names)), strict=True):
                with_types(
                    client, self._registry, observe_objects, child, page.data, at, self._registry
                )
            rows, size = rows + page.count, size + page.data.nbytes
            if all(child.codes or child.unreadable for child in children) or rows > _SAMPLE_ROWS:
                break
        if not rows:
            raise SourceError("the SELECT has no rows", hint="is its condition right?")
        counted = client.sql(f"SELECT COUNT(*) FROM ({self.statement})")  # nosec B608
        self.rows = int(only_value(counted))
        self.nbytes = size * self.rows // rows
        self._page_rows = max(1, min(_MOST_ROWS, _PAGE_BYTES // max(1, size // rows)))
        known = _fields_of_data_sets(client, self.statement)
        return [
            self._field(name, child, known.get(name))
            for name, child in zip(names, children, strict=True)
        ]

    def _field(self, name: str, seen: Evidence, known: Field | None) -> Field:
        if not (seen.codes or seen.unreadable):
            self.note(f"column {name} has only nulls and is loaded as text")
            return Field(name, TypeCode.STRING, BYTES, (), nullable=True)
        key, value = Evidence(), Evidence()
        key.codes.add(int(TypeCode.LONG))
        value.codes.add(int(TypeCode.OBJECT))
        value.inside[name] = seen
        try:
            found = infer_schema(key, value, self._registry)[name]
        except SchemaError as error:
            raise SourceError(f"column {name}: {error.message}", hint="leave it out") from error
        if found.type in ARRAY_ELEMENT:
            if _fits(known, found, seen):
                assert known is not None
                return replace(known, name=name, nullable=True)
            if found.type == TypeCode.BYTE_ARRAY:
                return Field(name, found.type, BYTES, (), nullable=True)
            found = replace(found, shape=(None,))
        return replace(found, nullable=True)

    def _pages(self, client: Client, rows: int) -> Generator[Page, None, None]:
        """Yield the pages of the statement; its cursor is closed with the connection."""
        request = sql_request("PUBLIC", self.statement, (), rows)
        channel = client.acquire()
        done = False
        try:
            _, _, page = first = read_first_sql_page(channel.call(OpCode.QUERY_SQL_FIELDS, request))
            yield page
            while page.more:
                page = read_page(
                    channel.call(OpCode.QUERY_SQL_FIELDS_PAGE, cursor_request(first[0]))
                )
                yield page
            done = True
        except ServerError:
            done = True
            raise
        finally:
            if done:
                client.release(channel)
            else:
                channel.close()

    def fingerprint(self) -> str:
        """A new text for each opened source."""
        return self._id

    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        if start:
            raise SourceError(
                "the rows of a SELECT have no fixed order, so reading cannot resume in the middle",
                hint="start again",
            )
        number = 0
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self._connect())
            pages = self._pages(client, self._page_rows)
            for page in stack.enter_context(contextlib.closing(pages)):
                columns = self._columns_in(client, page)
                numbers = np.arange(number, number + page.count)
                number += page.count
                if page.count:
                    yield from self._batches_of(columns, numbers, max_bytes)
        self.rows = number
        yield number, Batch(keys_of([]), {})

    def _columns_in(self, client: Client, page: Page) -> dict[str, Column]:
        found = {}
        places = _positions(page, len(self._columns))
        for field, at in zip(self._columns, places, strict=True):
            try:
                found[field.name] = with_types(
                    client, self._registry, decode_column, page.data, at, field, self._registry
                )
            except SchemaError as error:
                raise SourceError(
                    f"column {field.name}: {error.message}", hint=error.hint
                ) from error
        return found


def _positions(page: Page, columns: int) -> list[np.ndarray]:
    """Return the positions of each column's values in a page."""
    if not page.count:
        return [np.empty(0, np.int64)] * columns
    return [unwrap(page.data, at) for at in find_rows(page.data, page.count, columns)]


def _fits(known: Field | None, found: Field, seen: Evidence) -> bool:
    """True if all values so far have the length that a data set's field has."""
    if known is None or known.type != found.type or known.dtype == BYTES:
        return False
    whole = math.prod(n for n in known.shape if n is not None)
    if known.ragged:
        return all(n % max(1, whole) == 0 for n in seen.lengths)
    return seen.lengths == {whole}


def _fields_of_data_sets(client: Client, statement: str) -> dict[str, Field]:
    """Return the shaped fields of a statement's data sets; skip names with different shapes."""
    words = {word.upper() for word in _WORD.findall(statement)}
    found: dict[str, Field] = {}
    twice = set()
    for manifest in list_manifests(client):
        if manifest.name.upper() not in words:
            continue
        for field in manifest.schema.fields:
            name = field.name.upper()
            if field.shape and found.setdefault(name, field).shape != field.shape:
                twice.add(name)
    return {name: field for name, field in found.items() if name not in twice}


def sql(
    location: str,
    key: str | None = None,
    connect: Callable[[], Client] = connect_by_settings,
    bad_records: OnBadRecord = "fail",
) -> SqlSource:
    """Open the rows of a SELECT.

    Args:
        location: The statement.
        key: Column to use as the key, whose values have to differ; otherwise a running number.
        connect: Opens the connection that reads; it is closed when all rows are read.
        bad_records: Handling of rows whose key is null.

    Raises:
        SqlError: The node refuses the statement.
        SourceError: It has no rows, or columns that cannot be stored.
    """
    if not location:
        raise ConfigError("source 'sql' needs a SELECT")
    return SqlSource(location, key=key, connect=connect, bad_records=bad_records)
