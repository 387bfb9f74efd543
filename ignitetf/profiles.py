"""Profiles: named settings of connections, each a JSON file in ignitetf's folder.

`IGNITETF_HOME/profiles/NAME.json` is a JSON object whose keys are the names of the settings. Only
its owner can read it, since it may have a password.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ignitetf.errors import ConfigError
from ignitetf.home import ignitetf_home
from ignitetf.local.process import private_directory, write_private
from ignitetf.spelling import did_you_mean
from ignitetf.trust import check_trust

__all__ = ["profile_names", "profile_path", "read_profile", "remove_profile", "write_profile"]


def profile_path(name: str) -> Path:
    """Return a profile's file; raises ConfigError for an invalid name."""
    # "-" means no profile.
    if not name.isprintable() or not name or set(name) & {*"/\\"} or name.startswith((".", "-")):
        raise ConfigError(f"profile name {name!r} is not a plain name")
    return ignitetf_home() / "profiles" / f"{name}.json"


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted(
        path.stem for path in (ignitetf_home() / "profiles").glob("*.json") if path.is_file()
    )


def read_profile(name: str) -> dict[str, Any]:
    """Return the settings in a profile.

    Raises:
        ConfigError: The profile does not exist, is not a JSON object, or another user could have
            written it.
    """
    path = _existing(name)
    check_trust(path, "profile")
    hint = f"repair the file, or remove it with 'ignitetf profile rm {name}'"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"profile {path}: {error}", hint=hint) from error
    if not isinstance(data, dict):
        raise ConfigError(f"profile {path}: not a JSON object", hint=hint)
    return data


def write_profile(name: str, values: Mapping[str, Any]) -> Path:
    """Write a profile, replacing an older one of this name, and return its file."""
    path = profile_path(name)
    private_directory(path.parent)
    write_private(path, json.dumps(dict(values), indent=1) + "\n")
    return path


def remove_profile(name: str) -> None:
    """Remove a profile; raises ConfigError if it does not exist."""
    _existing(name).unlink(missing_ok=True)


def _existing(name: str) -> Path:
    path = profile_path(name)
    if path.is_file():
        return path
    hint = did_you_mean(name, profile_names(), "'ignitetf profile ls' lists them", count=2)
    raise ConfigError(f"no profile {name!r}", hint=hint)
