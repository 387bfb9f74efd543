"""`ignite://user:password@host:port/SCHEMA?ca=...`: what a URL says of a connection.

URL -> **url** -> dialect
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, Final

from sqlalchemy import exc

from ignitetf.settings import Settings

__all__ = ["arguments"]

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

    Several nodes are `?host=a:10800&host=b:10800`. A URL without a host takes the profile, the
    environment or the running node.

    Raises:
        ArgumentError: An option is unknown, or its value is none.
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
        # As in SQL: a word in small letters is one in capitals.
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
