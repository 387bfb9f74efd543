"""`ignitetf cache`: key-value caches."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ignitetf.cli.options import (
    BackupsOption,
    Connect,
    PartitionsOption,
    Yes,
    confirm,
    connected,
)
from ignitetf.cli.output import NESTED, OutputOption, say, show

app = typer.Typer(help="Create, list, describe, clear and drop caches.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the cache.", show_default=False)]
_FIELDS = ("name", "type", "key", "nullable", "dtype", "shape")


# Distribution of a cache's entries: divided among the nodes, or all on each.
Mode = Literal["partitioned", "replicated"]


# Behaviour of a cache in transactions.
Atomicity = Literal["atomic", "transactional"]


@app.command()
@connected
def create(
    connect: Connect,
    name: NameArgument,
    partitions: PartitionsOption = None,
    backups: BackupsOption = 0,
    mode: Annotated[
        Mode,
        typer.Option(case_sensitive=False, help="Divided among the nodes, or a full copy on each."),
    ] = "partitioned",
    atomicity: Annotated[
        Atomicity, typer.Option(case_sensitive=False, help="Atomic operations, or transactions.")
    ] = "atomic",
    output: OutputOption = "table",
) -> None:
    """Create a cache for keys and values of any type.

    Example: ignitetf cache create SESSIONS --partitions 16 --backups 1
    """
    from ignitetf.tables.caches import create_cache
    from ignitetf.tables.describe import list_caches
    from ignitetf.tables.spec import CacheSpec

    spec = CacheSpec(name, partitions, backups, mode.upper(), atomicity.upper())
    with connect() as client:
        create_cache(client, spec)
        show([row for row in list_caches(client) if row["name"] == name], output)


@app.command("ls")
@connected
def list_(connect: Connect, output: OutputOption = "table") -> None:
    """List the caches with their entries, partitions and backups.

    Example: ignitetf cache ls --output json
    """
    from ignitetf.tables.describe import list_caches

    with connect() as client:
        rows = list_caches(client)
    show(rows, output, columns=["name", "entries", "partitions", "backups", "mode"])


@app.command()
@connected
def describe(connect: Connect, name: NameArgument, output: OutputOption = "table") -> None:
    """Show how a cache stores its data, its fields and types.

    Example: ignitetf cache describe MNIST_TRAIN
    """
    from ignitetf.tables.describe import describe as describe_cache

    with connect() as client:
        found = describe_cache(client, name)
    if output in NESTED:
        show(found, output)
        return
    fields = found.pop("fields")
    found.pop("indexes", None)
    if output == "csv":
        show(fields, output, columns=_FIELDS)
        return
    if names := found.pop("class_names", None):
        found["class_names"] = ", ".join(f"{number} {name}" for number, name in enumerate(names))
    show({k: v for k, v in found.items() if v is not None})
    if fields:
        print()
        show(fields, columns=[c for c in _FIELDS if any(c in f for f in fields)])


@app.command()
@connected
def clear(
    connect: Connect, name: NameArgument, yes: Yes = False, output: OutputOption = "table"
) -> None:
    """Remove all entries of a cache.

    Example: ignitetf cache clear SESSIONS --yes
    """
    from ignitetf.tables.removal import clear_cache, count_removable

    with connect() as client:
        cache, entries = count_removable(client, name)
        confirm(f"Remove all {entries} entries of {name}?", yes)
        clear_cache(client, name)
    say(f"cache {name} is empty", {"cache": cache, "removed_entries": entries}, output)


@app.command()
@connected
def drop(
    connect: Connect,
    name: NameArgument,
    yes: Yes = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do nothing if the cache does not exist.")
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Remove a cache, its entries and its SQL table.

    Example: ignitetf cache drop SESSIONS --yes
    """
    from ignitetf.errors import CacheNotFound
    from ignitetf.tables.removal import count_removable, drop_cache

    with connect() as client:
        try:
            cache, entries = count_removable(client, name)
        except CacheNotFound:
            if not if_exists:
                raise
            say(f"cache {name} does not exist", {"cache": name, "removed_entries": None}, output)
            return
        confirm(f"Remove {name} with its {entries} entries?", yes)
        drop_cache(client, name)
    say(f"cache {name} was removed", {"cache": cache, "removed_entries": entries}, output)
