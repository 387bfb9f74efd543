"""`ignitetf launch`: run an unchanged script as one or several workers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import ignitetf
from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import NESTED, Output, OutputOption, note, show

if TYPE_CHECKING:
    from ignitetf.launch.engine import LaunchSpec
    from ignitetf.net.client import Client

app = typer.Typer()

Engine = Literal["local", "ray", "kubernetes"]
Keras = Literal["as-is", "repair", "legacy"]


@app.command(context_settings={"allow_interspersed_args": False})
@connected
def launch(
    connect: Connect,
    script: Annotated[str, typer.Argument(help="Script to run.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Arguments of the script.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Workers.")] = 1,
    parameter_servers: Annotated[
        int,
        typer.Option("--ps", min=0, help="Number of parameter servers; adds a chief.", metavar="K"),
    ] = 0,
    data: Annotated[
        str | None,
        typer.Option(help="Data set that IgniteDataset reads.", metavar="NAME"),
    ] = None,
    engine_name: Annotated[
        Engine, typer.Option("--engine", help="Engine that runs the workers.")
    ] = "local",
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the job has started.")
    ] = False,
    restarts: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of restarts of the group after failures.", metavar="R"
        ),
    ] = 0,
    elastic: Annotated[
        str | None,
        typer.Option(
            help="Restart with the remaining workers, within these limits.", metavar="MIN:MAX"
        ),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(min=0, help="Limit for each worker to start; 0 for none.", metavar="SECONDS"),
    ] = 120.0,
    end_timeout: Annotated[
        float,
        typer.Option(
            min=0,
            help="Limit from the end of the first worker to the last; 0 for none.",
            metavar="SECONDS",
        ),
    ] = 3600.0,
    grace: Annotated[
        float,
        typer.Option(min=0, help="Time for a clean end before it is killed.", metavar="SECONDS"),
    ] = 10.0,
    keras: Annotated[
        Keras,
        typer.Option(help="Repair Keras 3 for several workers, use Keras 2, or change nothing."),
    ] = "repair",
    image: Annotated[
        str, typer.Option(help="Image of the pods, for Kubernetes.", metavar="NAME")
    ] = f"ignitetf:{ignitetf.__version__}",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would run; start nothing."),
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Run a script as one or several workers.

    Options of the script follow its name.

    Example: ignitetf launch -n 2 --restarts 2 train.py --epochs 10
    """
    from ignitetf.launch.engine import LaunchSpec, elastic_range
    from ignitetf.launch.job import check_spec

    spec = LaunchSpec(
        script,
        tuple(arguments or ()),
        workers=workers,
        parameter_servers=parameter_servers,
        data=data,
        restarts=restarts,
        elastic=None if elastic is None else elastic_range(elastic),
        start_timeout_s=start_timeout,
        end_timeout_s=end_timeout,
        grace_s=grace,
        engine=engine_name,
        keras=keras,
    )
    # Checked before any request: a wrong name does not need the cluster.
    check_spec(spec)
    if engine_name == "kubernetes" or (engine_name == "ray" and dry_run):
        _print_manifests(spec, image, connect, dry_run)
        return
    with connect() as client:
        _launch(spec, client, output, detach=detach, dry_run=dry_run)


def _launch(
    spec: LaunchSpec, client: Client, output: Output, *, detach: bool, dry_run: bool
) -> None:
    """Run the workers from here, and exit with the code of the job; or show what would run."""
    from ignitetf.launch.background import run_in_background
    from ignitetf.launch.group import LocalEngine
    from ignitetf.launch.job import check_launch, job_of, place_of, run_job
    from ignitetf.launch.output import Prefixed

    check_launch(spec, client)
    job = job_of(spec)
    if dry_run:
        show(_planned(LocalEngine(client.settings).plan(spec, place_of(job)), output), output)
        return
    if detach:
        job = run_in_background(spec, job, client)
        note(f"'ignitetf attach {job.id}' shows it, 'ignitetf stop {job.id}' ends it")
        show(job.to_json() if output in NESTED else {"job": job.id}, output)
        return
    # Standard output is only for the job's record if it is printed as JSON or CSV.
    screen = Prefixed(sys.stderr if output != "table" else sys.stdout, sys.stderr)
    job = run_job(spec, job, client, show=screen.write, note=note)
    if output != "table":
        show(job.to_json(), output)
    raise typer.Exit(job.exit_code or 0)


def _print_manifests(spec: LaunchSpec, image: str, connect: Connect, dry_run: bool) -> None:
    """Print the Kubernetes objects that run the job; applying them starts it."""
    from ignitetf.errors import ConfigError
    from ignitetf.jobs.store import new_id
    from ignitetf.launch.kubernetes import SECRET, Target, indexed_job, ray_job, to_yaml

    if not dry_run:
        raise ConfigError(
            "Kubernetes starts the pods itself",
            hint="ignitetf launch --engine kubernetes --dry-run ... | kubectl apply -f -",
        )
    settings = connect.settings()
    make = ray_job if spec.engine == "ray" else indexed_job
    sys.stdout.write(to_yaml(make(spec, Target(new_id(spec.script), image, settings))))
    if settings.tls or settings.username is not None:
        note(
            f"the pods take username, password, ca.pem, cert.pem, key.pem from the secret {SECRET!r}:"
            f" kubectl create secret generic {SECRET} --from-literal ... --from-file ..."
        )


def _planned(workers: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
    """Return the workers that would start; flat rows for outputs without nested objects."""
    if output in NESTED:
        return workers
    return [
        {"worker": worker["worker"], "name": name, "value": value}
        for worker in workers
        for name, value in {"command": " ".join(worker["command"]), **worker["environment"]}.items()
    ]
