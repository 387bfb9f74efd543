"""`ignitetf ps`, `describe`, `attach`, `logs` and `stop`: training jobs, from any machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ignitetf.cli.options import Connect, connected
from ignitetf.cli.output import NESTED, OutputOption, note, show

if TYPE_CHECKING:
    from ignitetf.fs.store import Store
    from ignitetf.jobs.logs import JobSnapshot
    from ignitetf.jobs.record import Job, WorkerStatus
    from ignitetf.net.client import Client

ps_app = typer.Typer(help="List training jobs.")
describe_app = typer.Typer(help="Describe a training job and its workers.")
attach_app = typer.Typer(help="Follow the output and progress of a training job.")
logs_app = typer.Typer(help="Print the output of a training job.")
stop_app = typer.Typer(help="End a training job.")

_RECENT = 20
_COLUMNS = (
    "job",
    "state",
    "workers",
    "attempt",
    "created",
    "seen",
    "script",
    "data",
    "engine",
    "host",
)
_JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Job id, or the beginning of one.", show_default=False)
]


@ps_app.command("ps")
@connected
def ps(
    connect: Connect,
    all_jobs: Annotated[
        bool,
        typer.Option(
            "--all", "-a", help=f"All jobs, instead of running jobs and the last {_RECENT}."
        ),
    ] = False,
    output: OutputOption = "table",
) -> None:
    """List training jobs, the newest first. `dead`: the launcher vanished without recording an end.

    Example: ignitetf ps
    """
    from ignitetf.jobs.record import ENDED
    from ignitetf.jobs.store import JobStore

    with connect() as client:
        found = JobStore(client).jobs()
    shown = [j for n, j in enumerate(found) if all_jobs or n < _RECENT or j.state not in ENDED]
    if output in NESTED:
        show([job.to_json() for job in shown], output, columns=_fields(shown))
    else:
        show([_brief(job) for job in shown], output, columns=_COLUMNS)


def _fields(jobs: list[Job]) -> list[str] | None:
    return None if jobs else ["id"]


def _brief(job: Job) -> dict[str, Any]:
    workers = f"{job.workers}" + (f" + {job.ps} ps" if job.ps else "")
    return {
        "job": job.id,
        "state": job.state,
        "workers": workers,
        "attempt": job.attempt,
        "created": job.created,
        "seen": job.seen,
        "script": " ".join((job.script, *job.args)),
        "data": job.data,
        "engine": job.engine,
        "host": job.host,
    }


@describe_app.command("describe")
@connected
def describe(connect: Connect, job: _JobArgument, output: OutputOption = "table") -> None:
    """Print the record of a job and the rates of its workers.

    For each worker: rows/s, the wait for data, and what it read.

    Example: ignitetf describe train-3f2a --output json
    """
    from ignitetf.jobs.record import log_folder
    from ignitetf.jobs.store import JobStore

    with connect() as client:
        store = JobStore(client)
        found = store.find(job)
        workers = store.workers(found.id)
        living = store.living_workers(found.id, (worker.number for worker in workers))
        earlier = [w for n in range(1, found.attempt) for w in store.workers(found.id, n)]
    record = {**found.to_json(), "logs": log_folder(found.id)}
    if output in NESTED:
        records = [{**w.to_json(), "alive": w.number in living} for w in workers]
        before = [worker.to_json() for worker in earlier]
        show({**record, "workers_now": records, "workers_before": before}, output)
        return
    show(record, output)
    if workers and output == "table":
        print()
        show([_worker_row(worker, worker.number in living) for worker in workers], output)
    if earlier and output == "table":
        print("\nbefore it was started again:")
        show([{"attempt": w.attempt, **_worker_row(w, alive=True)} for w in earlier], output)


def _epoch(worker: WorkerStatus) -> str:
    """Return the epoch that a worker reads, and its rows so far."""
    if not worker.epochs:
        return ""
    last = worker.epochs[-1]
    return f"{last['epoch']}, {last['rows']:,} rows"


def _worker_row(worker: WorkerStatus, alive: bool) -> dict[str, Any]:
    gone = not alive and worker.state not in ("ended", "failed")
    return {
        "worker": worker.name,
        "state": "silent" if gone else worker.state,
        "host": worker.host,
        "pid": worker.pid,
        "step": worker.step,
        "epoch": _epoch(worker),
        "rows": worker.rows,
        "rows/s": round(worker.rows_per_s),
        "wait": f"{worker.wait:.0%}",
        "from": ", ".join(f"{place} {size / 1e6:,.1f} MB" for place, size in worker.places.items()),
        "exit": worker.exit_code,
    }


@attach_app.command("attach")
@connected
def attach(connect: Connect, job: _JobArgument, output: OutputOption = "table") -> None:
    """Follow a job to its end; Ctrl-C leaves it running.

    The exit code is that of the job.

    Example: ignitetf attach train-3f2a
    """
    from ignitetf.jobs.logs import LogReader, exit_code_of, follow

    last = None
    with _opened(connect) as (client, store):
        jobs, found = _found(client, job)
        with _screen(output) as write:
            for last in follow(jobs, LogReader(store, found.id), found.id):
                write(last)
    assert last is not None
    note(_ending(last.job))
    raise typer.Exit(exit_code_of(last.job))


@contextlib.contextmanager
def _opened(connect: Connect) -> Iterator[tuple[Client, Store]]:
    from ignitetf.fs.store import Store

    with connect() as client:
        yield client, Store(client)


def _found(client: Client, job: str) -> tuple[Any, Job]:
    from ignitetf.jobs.store import JobStore

    jobs = JobStore(client)
    return jobs, jobs.find(job)


@contextlib.contextmanager
def _screen(output: str) -> Iterator[Callable[[JobSnapshot], None]]:
    """Yield a function that prints a snapshot, in the form of the output."""
    if output in NESTED:
        yield _write_json
    elif not sys.stdout.isatty():
        yield _write_lines
    else:
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False)
        with Live(console=console, transient=True, refresh_per_second=4) as live:

            def write(snapshot: JobSnapshot) -> None:
                for _, worker, line in snapshot.lines:
                    console.print(f"[{worker}] {line}", markup=False, soft_wrap=True)
                live.update(_table(snapshot))

            yield write


def _write_json(snapshot: JobSnapshot) -> None:
    event = {
        "state": snapshot.job.state,
        "attempt": snapshot.job.attempt,
        "workers": [worker.to_json() for worker in snapshot.workers],
        "lines": [_line(*record) for record in snapshot.lines],
    }
    print(json.dumps(event, ensure_ascii=False), flush=True)


def _line(attempt: int, worker: str, line: str) -> dict[str, Any]:
    return {"attempt": attempt, "worker": worker, "line": line}


def _write_lines(snapshot: JobSnapshot) -> None:
    for _, worker, line in snapshot.lines:
        print(f"[{worker}] {line}")
    sys.stdout.flush()


def _table(snapshot: JobSnapshot) -> Any:
    from rich.table import Table

    job = snapshot.job
    table = Table(box=None, pad_edge=False, title_justify="left")
    table.title = f"{job.id}: {job.state}, attempt {job.attempt}"
    for name in ("worker", "state", "step", "epoch", "rows", "rows/s", "wait"):
        side = "left" if name in ("worker", "state") else "right"
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for worker in snapshot.workers:
        table.add_row(
            worker.name,
            worker.state,
            "" if worker.step is None else f"{worker.step:,}",
            _epoch(worker),
            f"{worker.rows:,}",
            f"{worker.rows_per_s:,.0f}",
            f"{worker.wait:.0%}",
        )
    return table


@logs_app.command("logs")
@connected
def logs(
    connect: Connect,
    job: _JobArgument,
    worker: Annotated[
        str | None,
        typer.Option("--worker", "-w", metavar="I", help="Only this one: 0, 'ps 0', chief."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Only this attempt.")
    ] = None,
    follow_it: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the job ends.")
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Print the output of a job's workers.

    As JSON, each line is an object.

    Example: ignitetf logs train-3f2a --worker 1
    """
    from ignitetf.jobs.logs import LogReader, follow

    name = f"worker {worker}" if worker is not None and worker.isdigit() else worker
    with _opened(connect) as (client, store):
        jobs, found = _found(client, job)
        reader = LogReader(store, found.id, name, attempt)
        if not follow_it:
            line_batches = [list(reader.lines(rest=True))]
        else:
            line_batches = (snapshot.lines for snapshot in follow(jobs, reader, found.id))  # type: ignore[assignment]
        some = False
        for lines in line_batches:
            for of_attempt, from_worker, line in lines:
                some = True
                if output in NESTED:
                    print(json.dumps(_line(of_attempt, from_worker, line), ensure_ascii=False))
                else:
                    print(line if name is not None else f"[{from_worker}] {line}")
            sys.stdout.flush()
    if not some:
        note(f"{found.id}: no output of {name or 'any worker'} yet")


@stop_app.command("stop")
@connected
def stop(
    connect: Connect,
    job: _JobArgument,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Maximum wait for its end.", metavar="SECONDS"),
    ] = 60.0,
    remove: Annotated[
        bool, typer.Option("--remove", help="Also delete its record and output.")
    ] = False,
    output: OutputOption = "table",
) -> None:
    """Stop a job, and wait until it has ended.

    Example: ignitetf stop train-3f2a
    """
    from ignitetf.errors import RequestTimeout
    from ignitetf.jobs.logs import wait_for_end
    from ignitetf.jobs.record import ENDED
    from ignitetf.jobs.store import user_and_host, utc_now

    with _opened(connect) as (client, store):
        jobs, found = _found(client, job)
        if found.state not in ENDED:
            jobs.request_stop(found.id, user_and_host())
            found = wait_for_end(jobs, found.id, wait)
        if found.state not in ENDED:
            raise RequestTimeout(
                f"{found.id} is still {found.state} after {wait:g} s",
                hint="it ends after its workers; see 'ignitetf describe'",
            )
        if found.state == "dead":
            cause = found.cause or "its launcher ended without reporting"
            found = jobs.update(found.id, state="failed", cause=cause, ended=utc_now())
        note(_ending(found))
        if output != "table":
            show(found.to_json(), output)
        if remove:
            jobs.remove(found.id)
            with contextlib.suppress(FileNotFoundError):
                store.remove_directory(f"/jobs/{found.id}", recursive=True)


def _ending(job: Job) -> str:
    summary = f"{job.id}: {job.state}"
    if job.exit_code is not None:
        summary += f", exit code {job.exit_code}"
    if job.state == "dead" and job.seen:
        summary += f", last seen {job.seen}"
    return f"{summary} ({job.cause})" if job.cause else summary
