"""`ignitetf profile`: named settings of connections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ignitetf.cli.group import UsageError
from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, say, show
from ignitetf.errors import ConfigError

app = typer.Typer(help="Add, list and remove named connection settings.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the profile.", show_default=False)]
_COLUMNS = ("profile", "connects_to", "username", "password", "tls", "others")
_FILES = ("ca", "cert", "key", "password_file", "key_password_file")


@app.command()
@connected
def add(
    connect: Connect,
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing profile.")] = False,
    output: OutputOption = "table",
) -> None:
    """Save connection options under a name, for --profile NAME.

    The profile called default is used by every command that names none.

    Example: ignitetf profile add lab --address lab1:10800,lab2:10800 --username reader --password
    """
    from ignitetf.profiles import profile_names, write_profile
    from ignitetf.settings import Settings

    given = connect.given()
    if "profile" in given:
        raise UsageError("a profile cannot be based on another one")
    if not given:
        raise UsageError("no option of a connection is given, such as --address HOST:PORT")
    if name in profile_names() and not force:
        raise ConfigError(f"profile {name!r} exists", hint="--force replaces it")
    for option in _FILES:
        if option in given:
            given[option] = str(Path(given[option]).expanduser().absolute())
    Settings.resolve(**given)  # raise an error for unusable settings
    if address := given.pop("address", None):
        given["addresses"] = [part.strip() for part in address.split(",") if part.strip()]
    path = write_profile(name, given)
    say(
        f"profile {name!r} was written to {path}; use it with --profile {name}",
        {"profile": name, "file": str(path)},
        output,
    )


@app.command("ls")
def list_(output: OutputOption = "table") -> None:
    """List the profiles, without their passwords.

    A password is only shown as set or not set.

    Example: ignitetf profile ls
    """
    from ignitetf.profiles import profile_names

    show([_row(name) for name in profile_names()], output, columns=_COLUMNS)


@app.command("rm")
def remove(name: NameArgument, output: OutputOption = "table") -> None:
    """Remove a profile.

    Example: ignitetf profile rm lab
    """
    from ignitetf.profiles import profile_path, remove_profile

    remove_profile(name)
    say(f"profile {name!r} was removed", {"profile": name, "file": str(profile_path(name))}, output)


def _row(name: str) -> dict[str, Any]:
    """Return the settings of a profile without secrets, or a note that it is damaged."""
    from ignitetf.profiles import read_profile

    try:
        data = read_profile(name)
    except ConfigError as error:
        return {"profile": name, "others": error.message}
    addresses = data.pop("addresses", data.pop("address", None))
    node = data.pop("node", None)
    place = ",".join(addresses) if isinstance(addresses, list) else addresses
    secret = data.pop("password", None), data.pop("password_file", None)
    data.pop("key_password", None)
    return {
        "profile": name,
        "connects_to": f"node {node}" if node else place,
        "username": data.pop("username", None),
        "password": "file" if secret[1] else "set" if secret[0] else None,
        "tls": data.pop("tls", None),
        "others": ", ".join(f"{key}={value}" for key, value in data.items()) or None,
    }
