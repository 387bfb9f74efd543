"""`ignitetf demo`: start a node, load data, train a model, and lose a node on the way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, note, show, terminal_width
from ignitetf.cli.quiet import quiet_tensorflow

if TYPE_CHECKING:
    from ignitetf.settings import Settings

app = typer.Typer()
_MEMORY = "512m"


@app.command()
@connected
def demo(
    connect: Connect,
    output: OutputOption = "table",
    port: Annotated[
        int, typer.Option(help="First port of the nodes, if they must be started.")
    ] = 10800,
) -> None:
    """Load digits, train, lose a node, resume and restore.

    It takes about a minute.

    If no node runs here and none is named, two are started, and one of them is killed during the
    training. A node that was already running is not changed.

    Example: ignitetf demo --output json
    """
    settings, node = connect.settings(), None
    if not settings.origin.get("addresses") and not _listens(settings):
        from ignitetf.node import Node

        note("starting two Apache Ignite nodes (the first start fetches 21 MB of jars)")
        node = Node.start(port=port, nodes=2, memory=_MEMORY, note=note)
        note(f"nodes at {', '.join(node.addresses)}; 'ignitetf node stop' ends them")
        settings = connect.settings()
    quiet_tensorflow()
    from ignitetf.demo import run_demo

    show(run_demo(settings, note, node, terminal_width(sys.stderr)), output)
    if node is not None:
        note(f"{len(node.addresses)} nodes still run; 'ignitetf node stop' ends them")


def _listens(settings: Settings) -> bool:
    from ignitetf.errors import ConnectError
    from ignitetf.net.client import Client

    try:
        Client(settings).close()
    except ConnectError:
        return False
    return True
