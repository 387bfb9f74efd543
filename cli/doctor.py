"""`ignitetf doctor`: installed packages, working combinations, and problems."""

from __future__ import annotations

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import OutputOption, show

app = typer.Typer()


@app.command()
@connected
def doctor(connect: Connect, output: OutputOption = "table") -> None:
    """Show problems and fixes, versions, and what can train.

    The exit code is 1 if a finding is an error. With --output json one object has three
    tables, `findings`, `versions` and `combinations`; CSV has the findings only.

    Example: ignitetf doctor --output json
    """
    from ignitetf.explore.doctor import combinations, versions
    from ignitetf.explore.findings import findings

    found = findings(connect.settings(), connect)
    if output == "json":
        tables = {"versions": versions(connect), "combinations": combinations()}
        show({"findings": found, **tables}, output)
    else:
        show(found, output)
    if output == "table":
        for more in (versions(connect), combinations()):
            print()
            show(more, output)
    if any(finding["state"] == "error" for finding in found):
        raise typer.Exit(1)
