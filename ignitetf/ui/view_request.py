"""`ViewRequest`: a request as the views see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import QueryParams

from ignitetf.errors import ConfigError
from ignitetf.ui.cluster import Cluster
from ignitetf.ui.rendering import Pages

__all__ = ["ViewRequest"]

_LONGEST: Final = 4_000


@dataclass(frozen=True)
class ViewRequest:
    """A browser's request.

    Attributes:
        cluster: The cluster.
        pages: Renders the answer.
        params: The parameters of the address.
        write: True if changes are allowed.
        form: The fields of a form that changes something; the form was verified to be ours.
    """

    cluster: Cluster
    pages: Pages
    params: QueryParams
    write: bool
    form: Mapping[str, str] = field(default_factory=dict)

    def optional(self, name: str) -> str | None:
        """Return a parameter, or None if it is missing or empty.

        Raises:
            ConfigError: It is given twice, is very long, or has a NUL.
        """
        found = self.values_of(name)
        if len(found) > 1:
            raise ConfigError(f"the address has {name}= twice")
        return found[0] if found else None

    def text(self, name: str) -> str:
        """Return a required parameter; raises ConfigError if it is missing."""
        found = self.optional(name)
        if found is None:
            raise ConfigError(f"the address has no {name}=", hint="go back to the first page")
        return found

    def values_of(self, name: str) -> list[str]:
        """Return all values of a parameter that are not empty."""
        found = [value for value in self.params.getlist(name) if value]
        if any(len(value) > _LONGEST or "\0" in value for value in found):
            raise ConfigError(f"{name}= is too long, or contains a NUL")
        return found
