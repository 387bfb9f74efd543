"""Connection settings: argument > environment > profile > running embedded node > default.

Every connection is made from one frozen `Settings`. This module imports nothing heavy, so that
commands that only print help stay fast. Secrets never appear in `repr` or `public`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ignitetf.errors import ConfigError
from ignitetf.local.state import read_state, running_addresses, running_nodes
from ignitetf.profiles import profile_path, read_profile
from ignitetf.spelling import did_you_mean

__all__ = [
    "DATA_CENTER",
    "DEFAULT_ADDRESS",
    "VARIABLES",
    "Settings",
    "is_loopback",
    "limits_of_environment",
    "split_address",
    "truth",
]

DEFAULT_ADDRESS = "127.0.0.1:10800"
DEFAULT_PORT = 10800
# The node attribute with a node's data center.
DATA_CENTER = "data_center"
_SECRETS = frozenset({"password", "key_password"})
_FILES = ("ca", "cert", "key")
# Maximum of a time limit: sockets do not accept arbitrarily large ones.
_LONGEST_S = 1e7
_MOST_AHEAD_BYTES = 1 << 40
_NO_PROFILE = "-"
# Settings and their alternative names, with the environment variable of each.
VARIABLES = {
    "address": "IGNITETF_ADDRESS",
    "node": "IGNITETF_NODE",
    "username": "IGNITETF_USERNAME",
    "password": "IGNITETF_PASSWORD",
    "password_file": "IGNITETF_PASSWORD_FILE",
    "tls": "IGNITETF_TLS",
    "ca": "IGNITETF_CA",
    "cert": "IGNITETF_CERT",
    "key": "IGNITETF_KEY",
    "key_password": "IGNITETF_KEY_PASSWORD",
    "key_password_file": "IGNITETF_KEY_PASSWORD_FILE",
    "tls_insecure": "IGNITETF_TLS_INSECURE",
    "connect_timeout_s": "IGNITETF_CONNECT_TIMEOUT",
    "request_timeout_s": "IGNITETF_REQUEST_TIMEOUT",
    "idle_timeout_s": "IGNITETF_IDLE_TIMEOUT",
    "ahead_bytes": "IGNITETF_AHEAD_BYTES",
    "data_center": "IGNITETF_DATA_CENTER",
    "time_zone": "IGNITETF_TIME_ZONE",
    "profile": "IGNITETF_PROFILE",
}


def limits_of_environment() -> dict[str, Any]:
    """Return the environment's time limits, for connections whose other settings are fixed."""
    given = {k: v for k, v in _from_environment().items() if k.endswith("_timeout_s")}
    return _normal(given, "environment")


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST`, `HOST:PORT` or `[IPV6]:PORT` into host and port.

    Raises:
        ConfigError: The port is not a number in 1..65535, or the host is empty.
    """
    text = address.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port_text = rest[1:] if rest.startswith(":") else rest
    elif text.count(":") > 1:
        host, port_text = text, ""
    else:
        host, _, port_text = text.partition(":")
    try:
        port = int(port_text) if port_text else DEFAULT_PORT
    except ValueError:
        port = 0
    if not host or not 0 < port < 65536:
        raise ConfigError(
            f"{address!r} is not an address", hint="write HOST:PORT, for example 127.0.0.1:10800"
        )
    return host, port


@dataclass(frozen=True)
class Settings:
    """Addresses and options of connections.

    Attributes:
        addresses: Nodes to try in order, each `HOST:PORT`.
        username: User name; None if the cluster has no login.
        password: Password of that user.
        tls: True if connections use TLS (verified unless `tls_insecure`).
        ca: File of trusted certificates; None for those of the system.
        cert: File of the client's certificate (chain).
        key: File of the client's private key; None if it is in `cert`.
        key_password: Password of an encrypted key file.
        tls_insecure: Do not check the server's certificate and host name.
        connect_timeout_s: Limit in seconds for connecting, TLS and handshake, per address.
        request_timeout_s: Limit in seconds for the answer to one request to begin, and for each
            further 64 KiB of it.
        idle_timeout_s: Limit in seconds for an operation without progress; within it, lost
            connections are replaced and requests refused by a changing cluster are repeated.
        ahead_bytes: Limit for the bytes that all connections of one load, file, query or reader
            have under way at once.
        data_center: Data center of this process. Partitions are read from a copy on this host,
            otherwise from a node with the same attribute `data_center`, otherwise from any node.
        time_zone: The time zone in which the nodes convert moments to dates and times, such as
            `Europe/Berlin`; None requests it from them.
        profile: Name of the profile these settings were read from, if any.
    """

    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    tls_insecure: bool = False
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 60.0
    ahead_bytes: int = 128 << 20
    data_center: str | None = None
    time_zone: str | None = None
    profile: str | None = None
    origin: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def resolve(cls, **given: Any) -> Settings:
        """Build settings from the arguments that are not None, then from the other sources.

        Args:
            **given: The attributes of this class, and also `address` (a comma-separated list or a
                sequence) for `addresses`, `node` (the name of an embedded node that runs here),
                `password_file` and `key_password_file`.

        Raises:
            ConfigError: A value is unusable, or the requested profile does not exist.
        """
        given = {k: v for k, v in given.items() if v is not None}
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        environment = _from_environment()
        name = _profile_of(given, environment)
        layers: list[tuple[str, Mapping[str, Any]]] = [
            ("argument", _with_profile(given, name)),
            ("environment", _with_profile(environment, name)),
            (f"profile {name or 'default'}", _from_profile(name)),
        ]
        for place, layer in _with_nodes(layers):
            for key, value in _normal(layer, place).items():
                if key not in values:
                    values[key], origin[key] = value, place
        if "addresses" not in values and (found := running_addresses()):
            values["addresses"], origin["addresses"] = found, "running embedded node"
        if "tls" not in values and any(values.get(k) for k in (*_FILES, "tls_insecure")):
            values["tls"], origin["tls"] = True, "implied by the certificate settings"
        settings = cls(**values, origin=origin)
        settings.check()
        return settings

    def check(self) -> None:
        """Raise ConfigError when a value is unusable."""
        if not self.addresses:
            raise ConfigError("no address given", hint="write --address HOST:PORT")
        for address in self.addresses:
            split_address(address)
        for name in ("connect_timeout_s", "request_timeout_s", "idle_timeout_s"):
            if not 0 < getattr(self, name) <= _LONGEST_S:
                raise ConfigError(
                    f"{name} must be above zero and at most {_LONGEST_S:.0f}, not"
                    f" {getattr(self, name)!r}",
                    hint=_setter(name, self.origin.get(name)),
                )
        if not 0 <= self.ahead_bytes <= _MOST_AHEAD_BYTES:
            raise ConfigError(
                f"ahead_bytes must be from 0 to {_MOST_AHEAD_BYTES}, not {self.ahead_bytes!r}",
                hint=_setter("ahead_bytes", self.origin.get("ahead_bytes")),
            )
        if self.username and self.password is None:
            raise ConfigError(
                f"user {self.username!r} has no password",
                hint="give --password-file FILE, set IGNITETF_PASSWORD, or enter it with --password",
            )
        for name in _FILES:
            path = getattr(self, name)
            if path is not None and not _is_file(path):
                hint = _setter(name, self.origin.get(name))
                raise ConfigError(f"--{name}: no file {path!r}", hint=hint)
        if self.key and not self.cert:
            raise ConfigError("a key without a certificate", hint="give --cert too")

    def replace(self, **changed: Any) -> Settings:
        """Return a copy with some attributes replaced."""
        return replace(self, **changed)

    def environment(self) -> dict[str, str]:
        """Return environment variables that give a process these settings, and no others.

        A default profile of that process adds nothing.
        """
        given = {
            "address" if item.name == "addresses" else item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in ("origin", "profile")
        }
        given["profile"] = _NO_PROFILE
        return {VARIABLES[k]: _as_text(v) for k, v in given.items() if v is not None}

    def public(self) -> list[dict[str, Any]]:
        """Return rows `setting`, `value`, `from`; a secret shows only whether it is set."""
        rows = []
        for item in fields(self):
            if item.name == "origin":
                continue
            value = getattr(self, item.name)
            if item.name in _SECRETS:
                value = "set" if value is not None else None
            elif item.name == "addresses":
                value = ",".join(value)
            place = self.origin.get(item.name, "default")
            rows.append({"setting": item.name, "value": value, "from": place})
        return rows


def _normal(layer: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Convert the lists, numbers and switches of a source of settings to their types."""
    out: dict[str, Any] = {}
    for name, value in layer.items():
        if value is None:
            continue
        try:
            key, out_value = _converted(name, value)
        except ConfigError as error:
            if error.hint is None and (hint := _setter(name, place)) is not None:
                raise error.hinted(hint) from error
            raise
        out[key] = out_value
    return out


def _converted(name: str, value: Any) -> tuple[str, Any]:
    """Return the setting and its value, from a name and a value of one source."""
    if name in ("address", "addresses"):
        return "addresses", _addresses(name, value)
    if name in ("password_file", "key_password_file"):
        return name.removesuffix("_file"), _read_secret(_text(name, value))
    known = {f.name for f in fields(Settings)} - {"origin"}
    if name not in known:
        raise ConfigError(f"unknown setting {name!r}", hint=f"known: {', '.join(sorted(known))}")
    if name in ("tls", "tls_insecure"):
        return name, truth(name, value)
    if name.endswith("_timeout_s"):
        return name, _number(name, value)
    if name == "ahead_bytes":
        return name, _whole(name, value)
    if name in _FILES:
        return name, str(_expanded(_text(name, str(value))))
    return name, _text(name, value)


def _setter(name: str, place: str | None) -> str | None:
    """Return a hint with the origin of a setting; None if the caller set it."""
    if place == "environment":
        variable = VARIABLES.get("address" if name == "addresses" else name)
        return f"the environment sets it: {variable}"
    return f"{place} sets it" if place and place.startswith("profile") else None


def _addresses(name: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, str) for p in parts):
        raise ConfigError(f"{name}: {value!r} is not a list of addresses")
    return tuple(p.strip() for p in parts if p.strip())


def _text(name: str, value: Any) -> str:
    # The message omits the value, which may be a secret.
    if not isinstance(value, str):
        raise ConfigError(f"{name} is not a text but of type {type(value).__name__}")
    if "\0" in value:
        raise ConfigError(f"{name} contains a NUL character")
    return value


def _from_environment() -> dict[str, Any]:
    return {k: os.environ[v] for k, v in VARIABLES.items() if os.environ.get(v)}


def _profile_of(given: Mapping[str, Any], environment: Mapping[str, Any]) -> str | None:
    """Return the name of the profile to read: None for a default one, `-` for none."""
    if name := given.get("profile"):
        return str(name)
    # A node given by name does not use another cluster's profile.
    if "node" in given:
        return _NO_PROFILE
    if name := environment.get("profile"):
        return str(name)
    addressed = bool({"address", "addresses"} & given.keys())
    return _NO_PROFILE if "node" in environment and not addressed else None


def _with_profile(layer: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Return the settings of one source; its profile only if that profile is used."""
    read = None if name == _NO_PROFILE else name
    return {k: v for k, v in layer.items() if k != "profile" or v == read}


def _from_profile(name: str | None) -> dict[str, Any]:
    """Return the settings of a profile, or of the one called `default`, if there is one."""
    if name == _NO_PROFILE:
        return {}
    if name is None:
        return read_profile("default") if profile_path("default").is_file() else {}
    return {"profile": name, **read_profile(name)}


def _with_nodes(
    layers: Iterable[tuple[str, Mapping[str, Any]]],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the sources of settings, each followed by those of the node that it names."""
    found = False  # whether an earlier layer set an address or a node
    for place, layer in layers:
        yield place, {name: value for name, value in layer.items() if name != "node"}
        addressed = bool({"address", "addresses"} & layer.keys())
        node = layer.get("node")
        if node is not None and addressed and not found:
            raise ConfigError(
                f"{place}: both a node and an address are given; give one of them",
                hint=_both(place),
            )
        if node is not None and not found:
            yield f"node {node}", _of_node(_text("node", node))
        found = found or addressed or node is not None


def _both(place: str) -> str:
    if place == "environment":
        return f"unset {VARIABLES['node']} or {VARIABLES['address']}"
    return "leave one of them out"


def _of_node(name: str) -> Mapping[str, Any]:
    """Return the settings that connect with a running embedded node."""
    state = read_state(name)
    addresses = running_addresses(name)
    if state is None or not addresses:
        running = [each for each in running_nodes() if each != name]
        hint = f"'ignitetf node start --name {name}' starts it"
        if running:
            hint = f"these run: {', '.join(running)}"
        raise ConfigError(f"node {name!r} does not run", hint=did_you_mean(name, running, hint))
    # A secured node has a profile with everything that its clients need.
    return read_profile(name) if state.options.secure else {"addresses": addresses}


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path!r}: the user does not exist") from error


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a name that is too long
        return False


def _read_secret(path: str) -> str:
    try:
        return _expanded(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"password file {path}: cannot be read") from error


def truth(name: str, value: Any) -> bool:
    """Return the meaning of `true`, `yes`, `on`, `1` and their opposites, in any case.

    Args:
        name: Origin of the value, for the error.
        value: A bool or a text.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ConfigError(f"{name}: {value!r} is neither true nor false")


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {value!r} is not a number of seconds") from error


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {value!r} is not a number of bytes") from error


def is_loopback(addresses: Iterable[str]) -> bool:
    """Return whether all addresses are on this machine."""

    def local(host: str) -> bool:
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    return all(local(split_address(a)[0]) for a in addresses)
