"""Options that many commands share, defined once.

`connected` gives a command the connection options without listing them in its signature: the
command has a parameter `connect`, a function that opens the client when it is called.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ignitetf.errors import ConfigError
from ignitetf.partitions import MAX_PARTITIONS

if TYPE_CHECKING:
    from ignitetf.net.client import Client
    from ignitetf.settings import Settings

__all__ = [
    "BackupsOption",
    "Connect",
    "PartitionsOption",
    "StorageWorkload",
    "WorkloadOption",
    "Yes",
    "confirm",
    "connected",
    "parameter",
]

_PANEL = "Connection"
_LIMITS = {"timeout": "request_timeout_s", "idle_timeout": "idle_timeout_s"}


class StorageWorkload(StrEnum):
    """Trainings of MLPerf Storage."""

    RESNET50 = "resnet50"
    UNET3D = "unet3d"
    COSMOFLOW = "cosmoflow"
    RETINANET_B200 = "retinanet-b200"
    UNET3D_B200 = "unet3d-b200"
    FLUX_B200 = "flux-b200"
    DLRM_B200 = "dlrm-b200"


WorkloadOption = Annotated[
    StorageWorkload,
    typer.Option("--workload", help="Samples, batches and steps of MLPerf Storage."),
]


class Connect:
    """Opens the client described by the connection options.

    Args:
        options: Values of the options by parameter name; None if not set.

    Attributes:
        on_missing: Called with the error of a file that was not found, before it is reported.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = {k: v for k, v in options.items() if v is not None}
        self.on_missing: Callable[[FileNotFoundError], None] = lambda error: None

    def settings(self) -> Settings:
        """Return the settings in force; prompts for a password whose option has no value."""
        from ignitetf.settings import Settings

        return Settings.resolve(**self.given())

    def __call__(self) -> Client:
        """Return a connected client; close it, or use it as a context manager."""
        from ignitetf.net.client import connect

        return connect(**self.given())

    def given(self) -> dict[str, Any]:
        """Return the settings that are given as options; prompt for passwords without a value."""
        given = dict(self._options)
        for option, setting in _LIMITS.items():
            if (limit := given.pop(option, None)) is not None:
                given[setting] = limit
        for option, whose in (("password", given.get("username")), ("key_password", "the key")):
            if given.get(option) == "":
                given[option] = _ask_password(option, whose)
        return given


def parameter(name: str, kind: Any, option: Any, default: Any = Parameter.empty) -> Parameter:
    """Return a parameter of a command: its type, and Typer's option or argument for it."""
    annotation = Annotated[kind, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option(flag: str, kind: Any, help: str, **more: Any) -> Parameter:
    name = flag.partition("/")[0].lstrip("-").replace("-", "_")
    option = typer.Option(flag, help=help, rich_help_panel=_PANEL, show_default=False, **more)
    return parameter(name, kind | None, option, None)


_CONNECTION = (
    _option("--address", str, "Nodes, HOST:PORT[,HOST:PORT].", metavar="ADDRESS"),
    _option("--node", str, "Embedded node of this machine, by its name.", metavar="NAME"),
    _option("--username", str, "User name.", metavar="NAME"),
    _option(
        "--password-file",
        str,
        "File with the password; or set IGNITETF_PASSWORD.",
        metavar="FILE",
    ),
    _option(
        "--password",
        str,
        "Password; without a value, the command asks for it, which is safer: other users of"
        " this machine can see a value in the list of processes.",
        metavar="[TEXT]",
    ),
    _option("--tls/--no-tls", bool, "Encrypt, and verify the server."),
    _option("--ca", str, "Certificates to trust, PEM.", metavar="FILE"),
    _option("--cert", str, "Client certificate, PEM.", metavar="FILE"),
    _option("--key", str, "Key of the client certificate, PEM.", metavar="FILE"),
    _option(
        "--key-password-file",
        str,
        "File with the password of the key; or set IGNITETF_KEY_PASSWORD.",
        metavar="FILE",
    ),
    _option(
        "--key-password",
        str,
        "Password of the key; without a value, the command asks for it.",
        metavar="[TEXT]",
    ),
    _option("--tls-insecure", bool, "Do not verify the server."),
    _option("--profile", str, "Settings from this profile.", metavar="NAME"),
    _option("--timeout", float, "Limit of one request in seconds.", metavar="SECONDS"),
    _option("--idle-timeout", float, "Limit without progress in seconds.", metavar="SECONDS"),
)


# Replaces --key in commands that use this name for an option of their own.
_TLS_KEY = _option("--tls-key", str, "Key of the client certificate.", metavar="FILE")


def connected(
    command: Callable[..., None], parameters: Sequence[Parameter] | None = None
) -> Callable[..., None]:
    """Give the command the connection options, and pass it `connect` made from them.

    The options that are set go to `ignitetf.connect`; environment, profile and running embedded
    node decide the others. In a command with its own `--key`, the key of the client certificate is
    called `--tls-key`.

    Args:
        command: The function to run.
        parameters: Its parameters except `connect`; None for those in its signature.
    """
    if parameters is None:
        signature = inspect.signature(command, eval_str=True)
        parameters = [p for name, p in signature.parameters.items() if name != "connect"]
    connection = list(_CONNECTION)
    if any(p.name == "key" for p in parameters):
        connection = [*(p for p in _CONNECTION if p.name != "key"), _TLS_KEY]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = {p.name: values.pop(p.name) for p in connection}
        if _TLS_KEY.name in options:
            options["key"] = options.pop(_TLS_KEY.name)
        connect = Connect(options)
        try:
            command(connect=connect, **values)
        except FileNotFoundError as error:
            connect.on_missing(error)
            raise

    shown = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in (*parameters, *connection)]
    del run.__wrapped__
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in shown}
    return run


PartitionsOption = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        min=1,
        max=MAX_PARTITIONS,
        metavar="N",
        help="Partitions of a new cache; the cluster needs a template for N (1, 2, 4 ... 1024).",
    ),
]
BackupsOption = Annotated[
    int, typer.Option("--backups", min=0, metavar="N", help="Copies of each partition.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask before data are lost, and abort if refused; without a terminal, do not ask."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


def _ask_password(option: str, whose: str | None) -> str:
    if not sys.stdin.isatty():
        flag = f"--{option.replace('_', '-')}"
        raise ConfigError(
            f"{flag} has no value, and cannot be asked for without a terminal",
            hint=f"use {flag}-file or IGNITETF_{option.upper()}",
        )
    import getpass

    return getpass.getpass(f"Password of {whose}: " if whose else "Password: ")
