"""Values that are no scalars of SQL: objects, lists, maps; as results, and as parameters by pyignite.

pages, parameters -> **objects** -> results
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyignite.datatypes import AnyDataObject
from pyignite.stream import BinaryStream
from pyignite.utils import is_binary, is_hinted

from ignitetf.errors import ConfigError, SchemaError, SqlError
from ignitetf.net.binary_types import with_types
from ignitetf.net.pool import Pool
from ignitetf.net.pyclient import translated
from ignitetf.wire.objects import Bytes, Positions
from ignitetf.wire.parameters import encode_parameter
from ignitetf.wire.plain_objects import plain_objects
from ignitetf.wire.types import TypeRegistry

__all__ = ["encode_values", "read_objects"]


def read_objects(
    pool: Pool, data: Bytes, at: Positions, registry: TypeRegistry, statement: str
) -> list[Any]:
    """Return the objects at these positions of a page, None for a null.

    Raises:
        SqlError: One of them cannot be read.
        WireError: An object reaches beyond the page.
    """
    try:
        return with_types(pool, registry, plain_objects, data, at, registry)
    except SchemaError as error:
        raise SqlError(error.message, hint=error.hint, statement=statement) from error


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
