"""`serve`: serves the pages on a loopback address of this machine until it is stopped.

cli -> **server** -> app
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import Final

import uvicorn

from ignitetf.errors import ConfigError
from ignitetf.settings import Settings
from ignitetf.ui.app import make_app
from ignitetf.ui.cluster import Cluster
from ignitetf.ui.guard import Secrets

__all__ = ["PORT", "serve"]

PORT: Final = 8765
_HOST: Final = "127.0.0.1"
_SHORTEST_TOKEN: Final = 16
_MOST_CONNECTIONS: Final = 512
# Time limits for pages are shorter than for programs.
_REQUEST_S: Final = 15.0
_CONNECT_S: Final = 3.0


def serve(
    settings: Settings,
    *,
    port: int | None = None,
    token: str | None = None,
    write: bool = False,
    browser: bool = False,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the pages until Ctrl-C or SIGTERM.

    Args:
        settings: Connection settings of the cluster.
        port: Port; None for `PORT`, or any free port if that is taken.
        token: Secret that a browser must present; None for a random one.
        write: True if pages may change anything.
        browser: True to open them in a browser.
        on_ready: Called with the address, token included, once the server listens.

    Raises:
        ConnectError: No node could be reached.
        ConfigError: The port is taken, or the token too short.
        KeyboardInterrupt: It was stopped by a signal.
    """
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii()):
        raise ConfigError(
            "the token is too easy to guess",
            hint=f"{_SHORTEST_TOKEN} ASCII characters or more; without --token it is a random one",
        )
    settings = settings.replace(
        request_timeout_s=min(settings.request_timeout_s, _REQUEST_S),
        idle_timeout_s=min(settings.idle_timeout_s, _REQUEST_S),
        connect_timeout_s=min(settings.connect_timeout_s, _CONNECT_S),
    )
    cluster = Cluster(settings)
    with contextlib.closing(cluster):
        with cluster.client() as client:
            client.cache_names()
        with _listening(port) as listener:
            _serve(cluster, listener, Secrets(token), write, browser, on_ready)


def _serve(
    cluster: Cluster,
    listener: socket.socket,
    known: Secrets,
    write: bool,
    browser: bool,
    on_ready: Callable[[str], None],
) -> None:
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        make_app(cluster, known, port, write=write),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )
    # The browser can already connect: connections wait in the socket's queue.
    on_ready(f"http://{_HOST}:{port}/?token={known.token}")
    if browser:
        url = f"http://{_HOST}:{port}/?token={known.ticket()}"
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])


def _listening(port: int | None) -> socket.socket:
    wanted = PORT if port is None else port
    try:
        return _bound(wanted)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return _bound(0)
        raise ConfigError(
            f"port {wanted}: {error.strerror}", hint="choose another one, or omit --port"
        ) from error


def _bound(port: int) -> socket.socket:
    # asyncio sends small answers immediately if the socket is declared as TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
