"""The dialect's features for SQLAlchemy's own suite, where they differ from its defaults.

**requirements** -> SQLAlchemy's suite, in tests/contract
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

__all__ = ["SUPPORTED", "UNSUPPORTED", "Requirements"]

# Features that the suite assumes but the dialect lacks, with the reason.
UNSUPPORTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "autoincrement_insert": "no autoincrement",
        "autoincrement_without_sequence": "no autoincrement",
        "implements_get_lastrowid": "no autoincrement",
        "date_implicit_bound": "a day as a value without a type becomes a TIMESTAMP",
        "foreign_key_constraint_reflection": "no foreign keys",
        "on_update_cascade": "no foreign keys",
        "recursive_fk_cascade": "no foreign keys",
        "unique_constraint_reflection": "no unique constraints",
        "named_constraints": "the name of a primary key is not stored",
        "implicitly_named_constraints": "no names of constraints",
        "schemas": "schemas are made by the configuration of a node, not by SQL",
        "temporary_tables": "no temporary tables",
        "temp_table_reflection": "no temporary tables",
        "time_microseconds": "TIME has milliseconds",
        "unusual_column_name_characters": "a column with a point in its name cannot be written",
        "symbol_names_w_double_quote": "a table whose column has a quote cannot be dropped",
    }
)
# Features that the suite does not assume but the dialect has.
SUPPORTED: Final = (
    "binary_literals",
    "date_historic",
    "datetime_historic",
    "datetime_timezone",
    "except_",
    "index_ddl_if_exists",
    "intersect",
    "mod_operator_as_percent_sign",
    "nullsordering",
    "order_by_label_with_expression",
    "precision_numerics_enotation_small",
    "precision_numerics_many_significant_digits",
    "precision_numerics_retains_significant_digits",
    "reflect_table_options",
    "regexp_match",
    "regexp_replace",
    "supports_is_distinct_from",
    "table_ddl_if_exists",
    "timestamp_microseconds",
    "tuple_in",
    "unicode_ddl",
    "uuid_data_type",
    "views",
    "infinity_floats",
    "fetch_first",
    "fetch_no_order_by",
    "fetch_expression",
    "percent_schema_names",
)


class Requirements(SuiteRequirements):  # type: ignore[misc]
    """The features of the dialect."""

    def get_isolation_levels(self, config: Any) -> dict[str, Any]:
        """Return the only isolation level, AUTOCOMMIT."""
        return {"default": "AUTOCOMMIT", "supported": ["AUTOCOMMIT"]}


def _answer(found: Any) -> property:
    return property(lambda self: found)


for _name in UNSUPPORTED:
    setattr(Requirements, _name, _answer(exclusions.closed()))
for _name in SUPPORTED:
    setattr(Requirements, _name, _answer(exclusions.open()))
