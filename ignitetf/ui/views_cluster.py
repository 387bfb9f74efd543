"""The pages of the cluster: activity, jobs, files, nodes, SQL."""

from __future__ import annotations

import functools
import getpass
import platform

from starlette.responses import RedirectResponse, Response

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.explore.cluster import unfinished_loads
from ignitetf.jobs.record import ENDED
from ignitetf.jobs.store import JobStore
from ignitetf.sql.tokens import reads_only
from ignitetf.ui.activity import job_view, recent_jobs, tail_of_log
from ignitetf.ui.files import folder_of
from ignitetf.ui.nodes import node_views
from ignitetf.ui.rendering import href
from ignitetf.ui.statements import LIMIT_S, only_statement, run_statement
from ignitetf.ui.view_request import ViewRequest

__all__ = [
    "activity",
    "activity_live",
    "change",
    "files",
    "job",
    "job_live",
    "nodes",
    "nodes_live",
    "sql",
    "stop_job",
    "up",
]


def _activity(request: ViewRequest, template: str) -> Response:
    """Loads and jobs, as a page or the part of it that changes."""
    with request.cluster.client() as client:
        found = request.cluster.figures.get(
            "activity", lambda: (unfinished_loads(client), recent_jobs(client))
        )
    return request.pages.page(template, section="activity", loads=found[0], jobs=found[1])


activity = functools.partial(_activity, template="activity.html")
activity_live = functools.partial(_activity, template="activity_live.html")


def _job(request: ViewRequest, template: str) -> Response:
    """One job, as a page or the part of it that changes."""
    name = request.text("id")
    with request.cluster.client() as client:
        view, logs = request.cluster.figures.get(
            ("job", name), lambda: (job_view(client, name), tail_of_log(client, name))
        )
    over = view.job.state in ENDED
    return request.pages.page(template, section="activity", view=view, logs=logs, over=over)


job = functools.partial(_job, template="job.html")
job_live = functools.partial(_job, template="job_live.html")


def files(request: ViewRequest) -> Response:
    """A directory of `igfs://`."""
    path = request.optional("path") or "/"
    with request.cluster.client() as client:
        folder = folder_of(client, path)
    return request.pages.page("files.html", section="files", folder=folder)


def _nodes(request: ViewRequest, template: str) -> Response:
    """The nodes, as a page or the part of it that changes."""
    with request.cluster.client() as client:
        found = request.cluster.figures.get("nodes", lambda: node_views(client))
    return request.pages.page(template, section="nodes", nodes=found)


nodes = functools.partial(_nodes, template="nodes.html")
nodes_live = functools.partial(_nodes, template="nodes_live.html")


def sql(request: ViewRequest) -> Response:
    """A query and its first rows."""
    text = (request.optional("q") or "").strip()
    if not text:
        return _sql(request, text)
    if request.write and not reads_only(only_statement(text)):
        # A link can open any address, so a change requires the button of the form.
        return _sql(request, text)
    return _run(request, text, write=False)


def change(request: ViewRequest) -> Response:
    """A statement from the form, for a server that allows changes."""
    return _run(request, request.form.get("q", "").strip(), write=True)


def stop_job(request: ViewRequest) -> Response:
    """Request the launcher of a job to end it."""
    name = request.form.get("id", "")
    with request.cluster.client() as client:
        store = JobStore(client)
        if store.get(name).state in ENDED:
            raise ConfigError(f"job {name!r} has ended already")
        store.request_stop(name, f"{getpass.getuser()}@{platform.node()}, in a browser")
    return RedirectResponse(href("/job", id=name), 303)


def up(request: ViewRequest) -> Response:
    """Make a waiting page reload once the cluster answers."""
    with request.cluster.client() as client:
        client.cache_names()
    return Response(status_code=200, headers={"HX-Refresh": "true"})


def _run(request: ViewRequest, text: str, *, write: bool) -> Response:
    try:
        with request.cluster.client_for_statement() as client:
            answer = run_statement(client, text, write=write)
    except IgniteTFError as error:
        return _sql(request, text, error=error, status=400)
    if write:
        request.cluster.opened.clear()
    return _sql(request, text, answer=answer)


def _sql(
    request: ViewRequest,
    text: str,
    *,
    answer: object = None,
    error: IgniteTFError | None = None,
    status: int = 200,
) -> Response:
    return request.pages.page(
        "sql.html", status, section="sql", text=text, answer=answer, error=error, limit_s=LIMIT_S
    )
