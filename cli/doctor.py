"""`ignitetf doctor`: what is installed here, and what of it works together."""

from __future__ import annotations

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, show

app = typer.Typer()


@app.command()
@connected
def doctor(connect: Connect, output: OutputOption = "table") -> None:
    """Show versions, what is missing, and which combinations train on several workers.

    The exit code is 0 also where something is missing. With --output json one object has both
    tables, `versions` and `combinations`; CSV has the versions only.

    Example: ignitetf doctor --output json
    """
    from ignitetf.explore.doctor import combinations, versions

    found = versions(connect)
    if output == "json":
        show({"versions": found, "combinations": combinations()}, output)
        return
    show(found, output)
    if output == "table":
        show(combinations(), output)
