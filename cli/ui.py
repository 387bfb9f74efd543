"""`ignitetf ui`: the cluster in a web browser."""

from __future__ import annotations

from typing import Annotated

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import note

app = typer.Typer()


@app.command()
@connected
def ui(
    connect: Connect,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port on this machine [default: 8765, or a free one]."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            envvar="IGNITETF_UI_TOKEN",
            show_envvar=False,
            help="Token that a browser must present [default: random]; IGNITETF_UI_TOKEN is safer, because"
            " other users of this machine can see options.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Allow the pages to run any SQL, and to stop jobs.")
    ] = False,
) -> None:
    """Show data sets, SQL, jobs, files and nodes in a browser.

    The page only reads, unless --write is given. It answers on a loopback address only, to clients
    that know the token in the printed address.

    Example: ignitetf ui --no-browser
    """
    from ignitetf.ui.server import serve

    def ready(url: str) -> None:
        typer.echo(url)
        note("Ctrl-C ends it")

    settings = connect.settings()
    serve(settings, port=port, token=token, write=write, browser=browser, on_ready=ready)
