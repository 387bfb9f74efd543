"""`ignitetf demo`: from nothing to a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, note, show
from ignitetf.cli.quiet import quiet_tensorflow

if TYPE_CHECKING:
    from ignitetf.settings import Settings

app = typer.Typer()


@app.command()
@connected
def demo(
    connect: Connect,
    output: OutputOption = "table",
    port: Annotated[
        int, typer.Option(help="Port of the node, when one has to be started.")
    ] = 10800,
) -> None:
    """Start a node if none runs, load digits, train a small model, save and restore it.

    Example: ignitetf demo --output json
    """
    settings = connect.settings()
    if not settings.origin.get("addresses") and not _listens(settings):
        from ignitetf.node import Node

        note("starting an Apache Ignite node (the first start fetches 21 MB of jars)")
        node = Node.start(port=port, note=note)
        note(f"node at {node.address}; 'ignitetf node stop' ends it")
        settings = connect.settings()
    quiet_tensorflow()
    from ignitetf.train.demo import run_demo

    show(run_demo(settings, note), output)


def _listens(settings: Settings) -> bool:
    from ignitetf.errors import ConnectError
    from ignitetf.net.client import Client

    try:
        Client(settings).close()
    except ConnectError:
        return False
    return True
