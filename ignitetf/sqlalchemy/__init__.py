"""Apache Ignite for SQLAlchemy: `create_engine("ignite://127.0.0.1:10800/PUBLIC")`.

An installed package registers the name `ignite` by itself; otherwise importing this module does.
docs/sqlalchemy.md lists the supported features of SQLAlchemy.
"""

from __future__ import annotations

from ignitetf.errors import MissingExtra

try:
    from sqlalchemy.dialects import registry
except ImportError as error:
    raise MissingExtra.of("ignitetf.sqlalchemy needs SQLAlchemy", "sqlalchemy", error) from error

from ignitetf.sqlalchemy.compiler import Merge, merge
from ignitetf.sqlalchemy.dialect import IgniteDialect
from ignitetf.sqlalchemy.types import TINYINT
from ignitetf.sqlalchemy.versions import Uuid

# `Uuid` is a class of SQLAlchemy, which 1.4 does not have.
__all__ = ["TINYINT", "IgniteDialect", "Merge", "Uuid", "merge"]

for _name in ("ignite", "ignite.ignitetf"):
    registry.register(_name, "ignitetf.sqlalchemy.dialect", "IgniteDialect")
