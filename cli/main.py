"""`ignitetf`: the entry point and the list of its commands.

Each command has its own module. It is listed here and imported only when the command is called, so
that `ignitetf --help` stays fast.
"""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from ignitetf.cli.group import LazyGroup
from ignitetf.cli.interrupts import end_at_request

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("ignitetf.cli.demo", "Start nodes, load a data set and train, in one command."),
    "node": ("ignitetf.cli.node", "Start, stop and inspect embedded nodes."),
    "profile": ("ignitetf.cli.profile", "Add, list and remove named connection settings."),
    "table": ("ignitetf.cli.table", "Create, list, describe and drop SQL tables."),
    "cache": ("ignitetf.cli.cache", "Create, list, describe, clear and drop caches."),
    "load": ("ignitetf.cli.load", "Load a data set into a cache."),
    "export": ("ignitetf.cli.export", "Write a data set to files: images, TFRecord, Parquet, tar."),
    "launch": ("ignitetf.cli.launch", "Run a script as one or several workers, to the end."),
    "verify": ("ignitetf.cli.verify", "Check rows, checksum, duplicates and images of a cache."),
    "split": ("ignitetf.cli.split", "Divide the rows of a data set into splits or folds."),
    "head": ("ignitetf.cli.explore:head_app", "Print some records of a cache."),
    "stats": (
        "ignitetf.cli.explore:stats_app",
        "Print statistics of a cache's columns and partitions.",
    ),
    "preview": ("ignitetf.cli.explore:preview_app", "Draw a contact sheet of a cache's images."),
    "query": ("ignitetf.cli.query", "Run SQL: one statement, a file, or an interactive prompt."),
    "ui": ("ignitetf.cli.ui", "Show data sets, SQL, jobs, files and nodes in a browser."),
    "ps": ("ignitetf.cli.jobs:ps_app", "List training jobs."),
    "describe": (
        "ignitetf.cli.jobs:describe_app",
        "Describe a training job and the rates of its workers.",
    ),
    "attach": ("ignitetf.cli.jobs:attach_app", "Follow a training job to its end."),
    "logs": ("ignitetf.cli.jobs:logs_app", "Print the output of a training job's workers."),
    "stop": ("ignitetf.cli.jobs:stop_app", "End a training job."),
    "fs": ("ignitetf.cli.fs", "Manage files in the cluster: ls, cat, put, get, cp, rm."),
    "checkpoint": ("ignitetf.cli.checkpoint", "Push, pull, list, prune and watch checkpoints."),
    "bench": ("ignitetf.cli.bench", "Measure rates, compared with the limit of the machine."),
    "plan": ("ignitetf.cli.plan", "Estimate the cluster size that a training needs."),
    "doctor": ("ignitetf.cli.doctor", "Show versions, missing packages and what works together."),
    "config": ("ignitetf.cli.config", "Show the settings in force and the origin of each."),
}


class _Root(LazyGroup):
    registry = COMMANDS


app = typer.Typer(name="ignitetf", cls=_Root, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        from ignitetf.explore.versions import versions

        for name, found in versions().items():
            typer.echo(f"{name} {found or 'not installed'}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; IGNITETF_DEBUG=1 too.")
    ] = False,
) -> None:
    """Training data in Apache Ignite, fed to TensorFlow at the speed of the wire.

    Example: ignitetf query "SELECT LABEL, COUNT(*) FROM MNIST_TRAIN GROUP BY LABEL"
    """
    command = ctx.command
    assert isinstance(command, LazyGroup)
    command.debug = command.debug or debug
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Run the command line; never returns."""
    end_at_request()
    # Users need the text of a warning, not the place in the code that issued it.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    app(prog_name="ignitetf")
