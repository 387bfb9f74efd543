"""`ignitetf split`: divide rows into training, validation and test, or into folds."""

from __future__ import annotations

from typing import Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, note, show

app = typer.Typer(help="Divide the rows of a data set.")


@app.command()
@connected
def split(
    connect: Connect,
    name: Annotated[str, typer.Argument(help="Name of the data set.", show_default=False)],
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPLIT=FRACTION]...",
            help="Splits to make, as train=0.8 test=0.2; without any, list the existing splits.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Make fold0, fold1 ... of equal size instead.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the hash.")] = 0,
    by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Balance the splits by the values of this field."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace existing splits, and all splits made with them."),
    ] = False,
    remove: Annotated[
        str | None,
        typer.Option(metavar="SPLIT", help="Remove this split, and all splits made with it."),
    ] = None,
    recount: Annotated[
        bool, typer.Option("--recount", help="Count the rows again, and keep the numbers.")
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Make, list or remove the splits of a data set.

    `open_rows` and `IgniteDataset` read one with split="train".

    A hash of its key decides the split of a row, so a row keeps its split when rows are appended.

    Example: ignitetf split MNIST_TRAIN train=0.9 validation=0.1 --by LABEL
    Example: ignitetf split MNIST_TRAIN --folds 5
    """
    from ignitetf.errors import ConfigError
    from ignitetf.read import divide
    from ignitetf.tables.describe import data_name

    makes = bool(parts) or folds is not None
    if makes + (remove is not None) + recount > 1 or (parts and folds is not None):
        raise ConfigError(
            "ignitetf split accepts one action at a time",
            hint="SPLIT=FRACTION ..., or one of --folds, --remove and --recount",
        )
    if not makes and (by is not None or seed or force):
        raise ConfigError("--by, --seed and --force without splits to make", hint="train=0.8 ...")
    fractions = _fractions(parts) if parts else None
    with connect() as client:
        name = data_name(client, name).name
        if makes:
            rows = divide.make_splits(
                client, name, fractions, folds=folds, seed=seed, by=by, force=force
            )
        elif remove is not None:
            rows = divide.remove_split(client, name, remove)
        elif recount:
            rows = divide.count_splits(client, name)
        else:
            rows = divide.list_splits(client, name)
    show(rows, output, columns=["split", "fraction", "rows", "seed", "by"])
    if not rows:
        note(f"{name} has no splits")


def _fractions(parts: list[str]) -> dict[str, str]:
    """Return the fractions by name."""
    from ignitetf.errors import ConfigError

    found: dict[str, str] = {}
    for part in parts:
        name, equals, fraction = part.partition("=")
        if not equals:
            raise ConfigError(f"{part!r} is not a split", hint="SPLIT=FRACTION, as train=0.8")
        if name in found:
            raise ConfigError(f"the split {name!r} is given twice")
        found[name] = fraction
    return found
