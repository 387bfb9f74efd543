"""Values that are no scalars of SQL, by pyignite: objects, lists, maps; as results and parameters.

pages, parameters -> **objects** -> results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyignite.datatypes import AnyDataObject, BinaryObject
from pyignite.stream import READ_BACKWARD, BinaryStream
from pyignite.utils import is_binary, is_hinted

from ignitetf.errors import ConfigError
from ignitetf.net.pool import Pool
from ignitetf.net.pyclient import translated
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.meaning import meant
from ignitetf.wire.objects import Bytes, Positions, object_end
from ignitetf.wire.parameters import encode_parameter

__all__ = ["encode_values", "read_objects"]


def read_objects(pool: Pool, data: Bytes, at: Positions, statement: str) -> list[Any]:
    """Return the objects at these positions of a page as pyignite reads them, None for a null.

    Raises:
        SqlError: pyignite cannot read one of them.
        WireError: An object reaches beyond the page.
    """
    data, at, codes = meant(data, at)
    view = memoryview(data)  # type: ignore[arg-type]
    found: list[Any] = []
    with translated(statement):
        for place, code in zip(at.tolist(), codes.tolist(), strict=True):
            if code == TypeCode.NULL:
                found.append(None)
            else:
                # Its lengths are checked first, as pyignite trusts them.
                found.append(_read(pool.pyignite, bytes(view[place : object_end(view, place)])))
    return found


def _read(client: Any, body: bytes) -> Any:
    with BinaryStream(client, body) as stream:
        kind = BinaryObject if body[0] == TypeCode.OBJECT else AnyDataObject
        parsed = stream.read_ctype(kind.parse(stream), direction=READ_BACKWARD)
        return client.unwrap_binary(kind.to_python(parsed, client=client))


def encode_values(pool: Pool, values: Sequence[Any]) -> list[bytes]:
    """Encode parameters; lists, objects and values with a type of pyignite as pyignite does.

    Raises:
        ConfigError: SQL has no type for a value.
    """
    return [
        _encoded(pool, value)
        if isinstance(value, (list, tuple)) or is_binary(value)
        else encode_parameter(value, pool.zone)
        for value in values
    ]


def _encoded(pool: Pool, value: Any) -> bytes:
    """Encode an array, or an object, for a column that holds such."""
    client = pool.pyignite
    with BinaryStream(client) as stream:
        if is_hinted(value):
            value[1].from_python(stream, value[0])
            return bytes(stream.getvalue())
        try:
            AnyDataObject.map_python_type(value)
        except (TypeError, IndexError) as error:
            raise ConfigError(
                f"a SQL parameter cannot be this {type(value).__name__}: {error}",
                hint="an array has values of one type; of a list for IN each value has a '?' of"
                " its own",
            ) from error
        with translated():
            AnyDataObject.from_python(stream, value)
        return bytes(stream.getvalue())
