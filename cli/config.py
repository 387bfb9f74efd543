"""`ignitetf config`: the settings in force and the source of each."""

from __future__ import annotations

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, show

app = typer.Typer()


@app.command()
@connected
def config(connect: Connect, output: OutputOption = "table") -> None:
    """Show the settings in force and the origin of each.

    A secret is shown only as set or not set.

    Example: ignitetf config --output json
    """
    from ignitetf.home import ignitetf_home

    rows = connect.settings().public()
    rows.append({"setting": "home", "value": str(ignitetf_home()), "from": _home_origin()})
    show(rows, output)


def _home_origin() -> str:
    import os

    return "environment" if os.environ.get("IGNITETF_HOME") else "default"
