"""The application: maps addresses to views and renders errors.

guard -> **app** -> worker thread -> views
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ignitetf.errors import (
    CacheNotFound,
    ClusterInactive,
    ConnectError,
    IgniteTFError,
    JobNotFound,
    KeyNotFound,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
    SqlError,
    WireError,
)
from ignitetf.ui import views_cluster, views_data
from ignitetf.ui.cluster import Cluster
from ignitetf.ui.guard import Guard, Secrets, same
from ignitetf.ui.rendering import Pages, static_files
from ignitetf.ui.view_request import ViewRequest

__all__ = ["make_app"]

log = logging.getLogger(__name__)
View = Callable[[ViewRequest], Response]
_LIMIT_S: Final = 30.0
_MOST_BODY: Final = 64 << 10
_FORM: Final = "application/x-www-form-urlencoded"
_NOT_FOUND_ERRORS: Final = (CacheNotFound, JobNotFound, KeyNotFound)
_UNAVAILABLE_ERRORS: Final = (
    ConnectError,
    RequestTimeout,
    ClusterInactive,
    PartitionLost,
    ServerOverloaded,
)

_PAGES: Final[dict[str, View]] = {
    "/": views_data.data_sets,
    "/rows": views_data.rows,
    "/row": views_data.row,
    "/images": views_data.images,
    "/image": views_data.image,
    "/partitions": views_data.partitions,
    "/about": views_data.about,
    "/sql": views_cluster.sql,
    "/activity": views_cluster.activity,
    "/activity/live": views_cluster.activity_live,
    "/job": views_cluster.job,
    "/job/live": views_cluster.job_live,
    "/files": views_cluster.files,
    "/nodes": views_cluster.nodes,
    "/nodes/live": views_cluster.nodes_live,
    "/up": views_cluster.up,
}
_CHANGES: Final[dict[str, View]] = {
    "/sql": views_cluster.change,
    "/job/stop": views_cluster.stop_job,
}


def make_app(cluster: Cluster, known: Secrets, port: int, *, write: bool = False) -> ASGIApp:
    """Return the application.

    Args:
        cluster: The cluster that it shows.
        known: Secrets that a browser must present.
        port: Port of the server.
        write: True if it may change anything.
    """
    pages = Pages(known.form, write, ", ".join(cluster.settings.addresses))
    site = _Site(cluster, pages, known, write)
    # Changes are matched first, because a page may have the same address.
    changes = _CHANGES if write else {}
    routes = [
        *(Route(path, site.change(view), methods=["POST"]) for path, view in changes.items()),
        *(Route(path, site.page(view), methods=["GET"]) for path, view in _PAGES.items()),
        Route("/static/{name}", _static, methods=["GET"]),
    ]
    handlers = {HTTPException: site.http_error}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port, known, pages.refusal)


class _Site:
    """Runs views in worker threads and renders their errors as pages."""

    def __init__(self, cluster: Cluster, pages: Pages, known: Secrets, write: bool) -> None:
        self._cluster, self._pages, self._known, self._write = cluster, pages, known, write
        self._workers = Workers(_LIMIT_S)

    def page(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page."""

        async def endpoint(request: Request) -> Response:
            page_request = ViewRequest(
                self._cluster, self._pages, request.query_params, self._write
            )
            return await self._answer(request, view, page_request)

        return endpoint

    def change(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a form that changes something."""

        async def endpoint(request: Request) -> Response:
            if request.headers.get("content-type", "").partition(";")[0].strip() != _FORM:
                raise HTTPException(415, "Only forms on pages of this server can change something.")
            body = bytearray()
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BODY:
                    raise HTTPException(413, "The form has more than 64 kB.")
            form = dict(parse_qsl(body.decode("utf-8", "replace")))
            if not same(form.get("secret", ""), self._known.form):
                raise HTTPException(403, "The form is not one of this server: reload the page.")
            page_request = ViewRequest(
                self._cluster, self._pages, request.query_params, self._write, form
            )
            return await self._answer(request, view, page_request)

        return endpoint

    async def _answer(self, request: Request, view: View, page_request: ViewRequest) -> Response:
        try:
            return await self._workers.run(functools.partial(view, page_request))
        except Exception as error:
            status, title, reason, hint = _explained(error)
            if status == 500:
                log.exception("%s", request.url.path)
            if request.headers.get("hx-request") and request.url.path != "/up":
                # The failed part of the page shows the error, and the page continues to request it.
                return self._pages.page("lost.html", reason=reason, hint=hint)
            return self._pages.page(
                "error.html", status, section=None, title=title, reason=reason, hint=hint,
                away=status == 503,
            )  # fmt: skip

    async def http_error(self, request: Request, error: Exception) -> Response:
        """Return the page of an error that was raised outside the views."""
        assert isinstance(error, HTTPException)
        reasons = {404: "This page does not exist.", 405: "This server only answers GET requests."}
        reason = reasons.get(error.status_code, error.detail)
        return self._pages.refusal(error.status_code, "Not possible", reason, "")


def _explained(error: Exception) -> tuple[int, str, str, str]:
    """Return the status, title, reason and hint of an error."""
    if isinstance(error, IgniteTFError):
        hint = error.hint or ""
        if isinstance(error, _NOT_FOUND_ERRORS):
            return 404, "Not there", error.message, hint
        if isinstance(error, _UNAVAILABLE_ERRORS):
            return 503, "The cluster does not answer", error.message, hint
        bad = not isinstance(error, (ServerError, WireError)) or isinstance(error, SqlError)
        return (400 if bad else 502), "The request failed", error.message, hint
    if isinstance(error, OSError) and error.errno is not None:
        gone = error.errno in (errno.ENOENT, errno.ENOTDIR)
        known = gone or error.errno in (errno.EINVAL, errno.ENAMETOOLONG, errno.EILSEQ)
        where = f"{error.filename}: " if error.filename is not None else ""
        reason = f"{where}{error.strerror}"
        if known:
            return (404 if gone else 400), "Not there", reason, "go back to the first page"
        return 503, "The cluster does not answer", reason, "is the node still running?"
    return (
        500,
        "An error of ignitetf",
        f"{type(error).__name__}: {error}",
        "the window of 'ignitetf ui' has the details",
    )


_STATIC: Final = static_files()


async def _static(request: Request) -> Response:
    found = _STATIC.get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(found[0], media_type=found[1], headers=headers)


# Requests wait for the cluster in these threads, so that the server itself never waits. They are
# daemons: a thread that waits for a node does not delay the end of the program.

T = TypeVar("T")
THREADS: Final = 8
_MOST_WAITING: Final = 256


class Workers:
    """A fixed number of threads with a bounded queue.

    Args:
        limit_s: Seconds after which a caller gets RequestTimeout.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._queue: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(_MOST_WAITING)
        for number in range(THREADS):
            threading.Thread(target=self._work, name=f"ui-{number}", daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a thread and return its result.

        Raises:
            ServerOverloaded: Too many other requests are waiting.
            RequestTimeout: It took longer than the limit. It continues in the background, and its
                result is ignored.
        """
        future: Future[T] = Future()
        try:
            self._queue.put_nowait((future, function))
        except queue.Full:
            raise ServerOverloaded(
                "too many requests at once", hint="close other windows, or retry in a moment"
            ) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limit_s)
        except TimeoutError:
            raise RequestTimeout(
                f"the cluster took longer than {self._limit_s:g} s for this page",
                hint="it may be busy with a load or a large query; retry in a moment",
            ) from None

    def _work(self) -> None:
        while True:
            future, function = self._queue.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, function
