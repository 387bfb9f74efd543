"""`ignitetf load`: load data sets into caches, with one sub-command per kind of source.

The commands are built from `ignitetf.load.kinds`: location and options of the kind, then the
options that all loads share (`loading`), then those of the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import Parameter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, get_args

import typer

from ignitetf.cli.loading import SHARED, Target, load
from ignitetf.cli.options import Connect, connected, parameter
from ignitetf.errors import ConfigError
from ignitetf.load.kinds import KINDS, Location, Option, SourceKind, Split

if TYPE_CHECKING:
    from ignitetf.load.sources.base import Source

app = typer.Typer(help="Load a data set into a cache.", no_args_is_help=True)

_SPLIT = Option("--split", "One part only [default: both; with --cache: train].", type=Split)


def _command(name: str, kind: SourceKind) -> Callable[..., None]:
    """Return the command that loads a kind of source."""
    options = (*kind.options, _SPLIT) if kind.splits else kind.options

    def run(connect: Connect, **given: Any) -> None:
        shared = {each.name: given.pop(each.name) for each in SHARED}
        place = _place(kind.location, given)
        if kind.splits:
            targets = _splits(name, place, shared["cache"], given["split"])
        else:
            assert place is not None
            if kind.connects:
                given["connect"] = connect
            targets = [_target(name, place, shared["cache"], given)]
        load(connect, targets, **shared)

    run.__name__ = name
    run.__doc__ = f"{kind.help}\n\nExample: {' '.join(['ignitetf load', name, kind.example])}"
    parameters = [*_location_parameters(kind.location), *map(_parameter, options), *SHARED]
    return connected(run, parameters)


def _location_parameters(location: Location | None) -> Iterable[Parameter]:
    if location is None:
        return
    if location.option is None:
        argument = typer.Argument(help=location.help)
        yield parameter("source", list[str] if location.several else str, argument)
    else:
        argument = typer.Argument(metavar="[SOURCE]", help=location.help, show_default=False)
        yield parameter("place", str | None, argument, None)
        yield _parameter(location.option)


def _parameter(option: Option) -> Parameter:
    kind = option.type if option.default is not None else option.type | None
    shown = typer.Option(option.flag, metavar=option.metavar, help=option.help)
    return parameter(option.name, kind, shown, option.default)


def _place(location: Location | None, given: dict[str, Any]) -> str | list[str] | None:
    """Remove the location from the values of a command, and return it."""
    if location is None:
        return None
    found: str | list[str] | None
    if location.option is None:
        found = given.pop("source")
    else:
        argument, option = given.pop("place"), given.pop(location.option.name)
        found = option or argument
    return found


def _splits(
    kind: str, place: str | list[str] | None, cache: str | None, split: Split | None
) -> list[Target]:
    if cache is not None and split is None:
        split = "train"
    wanted = [split] if split is not None else get_args(Split)
    return [
        _target_of(kind, place, cache or f"{kind.upper()}_{each.upper()}", {"split": each})
        for each in wanted
    ]


def _target(kind: str, place: str | list[str], cache: str | None, options: Any) -> Target:
    given = {name: value for name, value in options.items() if value is not None}
    if cache is None and KINDS[kind].connects:
        raise ConfigError("the data set has no name", hint="name it with --cache NAME")
    name = cache or _name_of(place if isinstance(place, str) else place[0])
    return _target_of(kind, place, name, given)


def _target_of(kind: str, place: str | list[str] | None, name: str, options: Any) -> Target:
    from ignitetf.load.sources import open_source

    def opened(bad_records: str) -> Source:
        return open_source(kind, place, bad_records=bad_records, **options)

    known = {name: value for name, value in options.items() if name != "connect"}
    return Target(name, opened, {"kind": kind, "options": known})


def _name_of(place: str) -> str:
    """Return the default cache name for a file: its name without suffixes, in capitals."""
    from ignitetf.load.sources.base import column_name

    return column_name(PurePosixPath(place.rstrip("/*")).name.split(".")[0])


for _name, _kind in KINDS.items():
    if _kind.help is not None:
        app.command()(_command(_name, _kind))
