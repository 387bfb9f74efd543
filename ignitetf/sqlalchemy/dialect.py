"""`IgniteDialect`: SQLAlchemy's dialect for Apache Ignite.

dbapi, types, compiler, ddl, reflection -> **dialect** -> SQLAlchemy
"""

from __future__ import annotations

import dataclasses
import difflib
from types import ModuleType
from typing import Any, Final

from sqlalchemy import Column, MetaData, String, Table, event, exc, text
from sqlalchemy.engine.default import DefaultDialect

from ignitetf.errors import ConnectError
from ignitetf.post_import import when_imported
from ignitetf.settings import Settings
from ignitetf.sqlalchemy.compiler import IgniteCompiler, IgnitePreparer
from ignitetf.sqlalchemy.ddl import CONSTRUCT_ARGUMENTS, IgniteDDLCompiler, IgniteTypeCompiler
from ignitetf.sqlalchemy.reflection import IgniteInspector, Reflection
from ignitetf.sqlalchemy.types import COLSPECS
from ignitetf.sqlalchemy.versions import is_old

__all__ = ["IgniteDialect"]

# Alembic searches the classes that it knows for the dialect; it does not read entry points.
when_imported("alembic.ddl.impl", lambda module: _add_implementation(module))

_AUTOCOMMIT: Final = "AUTOCOMMIT"


def _add_hint(context: Any) -> None:
    hint = getattr(context.original_exception, "hint", None)
    if hint and context.sqlalchemy_exception is not None:
        context.sqlalchemy_exception.add_detail(f"hint: {hint}")


class IgniteDialect(Reflection, DefaultDialect):  # type: ignore[misc]
    """Apache Ignite 2 through `ignitetf.dbapi`.

    Each statement is applied immediately. `commit()` and `rollback()` do nothing, as in
    SQLAlchemy's isolation level AUTOCOMMIT, which is the only one.
    """

    name = "ignite"
    driver = "ignitetf"
    default_paramstyle = "qmark"
    max_identifier_length = 128
    supports_statement_cache = True
    # Ignite converts unquoted names to upper case.
    requires_name_normalize = True

    statement_compiler = IgniteCompiler
    ddl_compiler = IgniteDDLCompiler
    type_compiler_cls = IgniteTypeCompiler
    if is_old:
        type_compiler = IgniteTypeCompiler
    preparer = IgnitePreparer
    colspecs = COLSPECS
    inspector = IgniteInspector
    construct_arguments = CONSTRUCT_ARGUMENTS

    # If off, SQLAlchemy writes foreign keys into CREATE TABLE, where our compiler omits them.
    supports_alter = False
    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    returns_native_bytes = True
    supports_multivalues_insert = True
    supports_default_values = False
    supports_empty_insert = False
    postfetch_lastrowid = False
    tuple_in_values = False
    supports_sane_rowcount = True
    supports_sane_multi_rowcount = True

    def __init__(
        self, json_serializer: Any = None, json_deserializer: Any = None, **kwargs: Any
    ) -> None:
        """Take the options of `create_engine`.

        Args:
            json_serializer: Converts a value of a JSON column to text; None for `json.dumps`.
            json_deserializer: Parses that text; None for `json.loads`.
            **kwargs: Arguments of SQLAlchemy's `DefaultDialect`.
        """
        super().__init__(**kwargs)
        self._json_serializer = json_serializer
        self._json_deserializer = json_deserializer

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """Return `ignitetf.dbapi`."""
        from ignitetf import dbapi

        return dbapi

    if is_old:
        dbapi: Any = import_dbapi

    @classmethod
    def engine_created(cls, engine: Any) -> None:
        """Add the hints of our errors to the errors of SQLAlchemy."""
        event.listen(engine, "handle_error", _add_hint)

    def create_connect_args(self, url: Any) -> tuple[list[Any], dict[str, Any]]:
        """Convert a URL to arguments of `dbapi.connect`."""
        return [], arguments(url)

    # Transactions, which Ignite's SQL does not have

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Do nothing: each statement is already applied."""

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        """Refuse it."""
        raise exc.InvalidRequestError("Apache Ignite has no transactions over several statements")

    def do_savepoint(self, connection: Any, name: str) -> None:
        """Refuse it."""
        raise exc.InvalidRequestError(
            "Apache Ignite has no savepoints: statements cannot be taken back"
        )

    def get_isolation_level_values(self, dbapi_connection: Any) -> list[str]:
        """Return the only isolation level, AUTOCOMMIT."""
        return [_AUTOCOMMIT]

    def get_default_isolation_level(self, dbapi_conn: Any) -> str:
        """Return the only isolation level, AUTOCOMMIT."""
        return _AUTOCOMMIT

    def get_isolation_level(self, dbapi_connection: Any) -> str:
        """Return the only isolation level, AUTOCOMMIT."""
        return _AUTOCOMMIT

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """Do nothing: SQLAlchemy has checked that it is the only level."""

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        """Return True."""
        return True

    # The connection

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Check the connection with a small request."""
        with dbapi_connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True

    def is_disconnect(self, e: Exception, connection: Any, cursor: Any) -> bool:
        """True if all nodes stopped answering, or the connection was closed.

        The client replaces a lost connection itself, as long as some node answers.
        """
        if isinstance(e, self.dbapi.InterfaceError):
            return "connection is closed" in str(e)
        return isinstance(e.__cause__, ConnectError)

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        version = connection.execute(text("SELECT VERSION FROM SYS.NODES")).scalar()
        numbers = str(version).partition("#")[0].split("-")[0].split(".")
        return tuple(int(number) for number in numbers if number.isdigit())

    def _get_default_schema_name(self, connection: Any) -> str:
        # SQLAlchemy 1.4 does not wrap the first error.
        raw = getattr(connection.connection, "dbapi_connection", connection.connection)
        found: str = self.normalize_name(raw.schema)
        return found


# Connection settings from `ignite://user:password@host:port/SCHEMA?ca=...`

_NUMBERS: Final = frozenset(
    ("timeout_s", "connect_timeout_s", "request_timeout_s", "idle_timeout_s")
)
_FLAGS: Final = frozenset(("tls", "tls_insecure"))
_OWN: Final = frozenset(("node", "password_file", "key_password_file", "timeout_s", "page_rows"))
_NAMES: Final = (
    frozenset(field.name for field in dataclasses.fields(Settings)) - {"addresses", "origin"} | _OWN
)


def arguments(url: Any) -> dict[str, Any]:
    """Return the arguments of `ignitetf.dbapi.connect` for a URL.

    Several nodes are `?host=a:10800&host=b:10800`. A URL without a host uses the profile, the
    environment or the running node.

    Raises:
        ArgumentError: An option is unknown, or its value is invalid.
    """
    found: dict[str, Any] = {}
    hosts = [f"[{url.host}]" if ":" in url.host else url.host] if url.host else []
    if hosts and url.port is not None:
        hosts[0] += f":{url.port}"
    for name, value in url.normalized_query.items():
        if name == "host":
            hosts += [host for given in value for host in given.split(",")]
        else:
            found[name] = _value(name, value[-1])
    if hosts:
        found["address"] = tuple(hosts)
    if url.database:
        # As in SQL, a lower-case word is the same as an upper-case one.
        found["schema"] = url.database.upper() if url.database.islower() else url.database
    if url.username is not None:
        found["username"] = url.username
    if url.password is not None:
        found["password"] = str(url.password)
    return found


def _value(name: str, text: str) -> Any:
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, 1)
        hint = f"do you mean {near[0]}?" if near else f"known are host, {', '.join(sorted(_NAMES))}"
        raise exc.ArgumentError(f"the URL has an unknown option {name}; hint: {hint}")
    try:
        if name in _NUMBERS:
            return float(text)
        if name == "page_rows":
            return int(text)
        if name in _FLAGS:
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[
                text.lower()
            ]
    except (ValueError, KeyError):
        kind = "true or false" if name in _FLAGS else "a number"
        raise exc.ArgumentError(f"option {name} of the URL is {text!r}, not {kind}") from None
    return text


def _add_implementation(module: ModuleType) -> None:
    """Define how Alembic migrates Apache Ignite; the argument is the module `alembic.ddl.impl`."""

    class IgniteImpl(module.DefaultImpl):  # type: ignore[misc, name-defined]
        # Alembic registers the class by this attribute.
        __dialect__ = "ignite"
        transactional_ddl = False

        def version_table_impl(
            self, *, version_table: str, version_table_schema: str | None, **kwargs: Any
        ) -> Any:
            """Return the version table, without a key: Ignite cannot update keys."""
            return Table(
                version_table,
                MetaData(),
                Column("version_num", String(32), nullable=False),
                schema=version_table_schema,
            )
