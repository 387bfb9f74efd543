"""The command line as a whole: help, speed, exits, suggestions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import typer
from helpers.command_tree import leaves
from typer.main import get_command
from typer.testing import CliRunner

from ignitetf.cli import options
from ignitetf.cli.group import LazyGroup, UsageError
from ignitetf.cli.main import COMMANDS, app
from ignitetf.errors import ConfigError, ConnectError
from ignitetf.load.kinds import KINDS

pytestmark = pytest.mark.core

HEAVY = ("numpy", "tensorflow", "pyignite", "rich", "pyarrow", "prompt_toolkit", "pandas")
COMMAND_PATHS = [path for path, _ in leaves(get_command(app))]


def run(*args: str, **more: Any) -> Any:
    return CliRunner().invoke(app, list(args), prog_name="ignitetf", **more)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a function as the command `act` of a lazy group."""

    def invoke(function: Callable[..., None], *args: str, **more: Any) -> Any:
        module = types.ModuleType("ignitetf_test_command")
        module.app = typer.Typer()  # type: ignore[attr-defined]
        module.app.command()(function)
        monkeypatch.setitem(sys.modules, module.__name__, module)

        class Group(LazyGroup):
            registry = {"act": (module.__name__, "Acts.")}  # noqa: RUF012

        root = typer.Typer(cls=Group)
        root.callback(invoke_without_command=True)(lambda: None)
        return CliRunner().invoke(root, ["act", *args], **more)

    return invoke


@pytest.mark.parametrize("path", COMMAND_PATHS, ids=" ".join)
def test_every_command_has_help_with_an_example(path):
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert f"Example: ignitetf {path[0]}" in result.stdout


@pytest.mark.parametrize("words", [[], ["load"], ["fs"], ["node"], ["cache"], ["checkpoint"]])
def test_lists_of_commands_have_whole_sentences(words):
    commands = run(*words, "--help").stdout.partition("Commands:\n")[2]
    assert commands.count("\n") > 3
    assert "..." not in commands


@pytest.mark.parametrize("name", COMMANDS)
def test_help_line_of_the_root_names_each_command(name):
    assert f"  {name} " in run("--help").stdout


def test_root_without_arguments_is_its_help():
    assert run().stdout == run("--help").stdout
    assert run().exit_code == 0


def test_version():
    import ignitetf

    lines = run("--version").stdout.splitlines()
    assert lines[0] == f"ignitetf {ignitetf.__version__}"
    names = ("Python", "TensorFlow", "Keras", "NumPy", "pyignite", "pyarrow", "Java", "Ignite jars")
    assert all(line.startswith(f"{name} ") for name, line in zip(names, lines[1:], strict=True))
    code = (
        "import sys; from ignitetf.cli.main import app\n"
        "try: app(['--version'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    assert python(code).splitlines()[-1] == "[]"


def test_import_and_help_load_nothing_heavy():
    code = (
        "import sys; from ignitetf.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    assert python(code).splitlines()[-1] == "[]"


def test_help_imports_few_modules():
    """What makes it slow, without a clock: 151 modules in November 2026, NumPy alone has 150."""
    code = (
        "import sys; from ignitetf.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print(len(sys.modules))"
    )
    assert int(python(code).splitlines()[-1]) < 220


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (("qurey",), "query"),
        (("cache", "desribe", "X"), "describe"),
        (("cache", "ls", "--adress", "h"), "--address"),
        (("query", "--ouptut", "json"), "--output"),
    ],
)
def test_wrong_usage_exits_2_and_names_the_nearest(args, suggestion):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    error, hint = result.stderr.splitlines()
    assert error.startswith("error: ")
    assert f"did you mean {suggestion}" in hint
    assert "--help" in hint


@pytest.mark.parametrize(
    "args",
    [
        ("cache", "create"),
        ("cache", "create", "X", "--partitions", "0"),
        ("cache", "create", "X", "--partitions", "-1"),
        ("cache", "create", "X", "--partitions", "65001"),
        ("cache", "create", "X", "--partitions", "many"),
        ("cache", "create", "X", "--backups", "-1"),
        ("cache", "ls", "--output", "xml"),
        ("cache", "ls", "--timeout", "soon"),
        ("table", "create", "nothing"),
        ("query", "SELECT 1", "--max-rows", "0"),
        ("query", "SELECT 1", "--file", "x.sql"),
        ("query", "SELECT 1", "--output", "parquet"),
        ("query", "SELECT 1; SELECT 2", "--output", "json"),
        ("query", "SELECT 1; SELECT ?", "--param", "1"),
        ("query", "/* nothing */"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two_lines_and_exit_2(args):
    result = run(*args)
    assert result.exit_code == 2
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]


def test_group_without_command_shows_its_help():
    result = run("cache")
    assert result.exit_code == 2
    assert "Commands:" in result.output


def test_failure_is_one_line_and_a_hint(group):
    def act() -> None:
        raise ConfigError("the thing is\nbroken", hint="mend it")

    result = group(act)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "error: the thing is broken\nhint: mend it\n"


@pytest.mark.parametrize(("args", "env"), [(("--debug",), {}), ((), {"IGNITETF_DEBUG": "1"})])
def test_debug_shows_the_traceback(group, args, env):
    def act() -> None:
        raise ConfigError("broken", hint="mend it")

    result = group(act, *args, env=env)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: broken\nhint: mend it\n")
    assert result.stderr.count("hint: mend it") == 1


def test_unexpected_exception_is_an_internal_error(group):
    def act() -> None:
        raise ZeroDivisionError("by zero")

    result = group(act)
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert error == "internal error: ZeroDivisionError: by zero"
    assert "--debug" in hint


def test_operating_system_error_names_the_file(group, tmp_path):
    def act() -> None:
        (tmp_path / "none").read_text()

    result = group(act)
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path / 'none'}: No such file or directory\n"


def test_missing_package_names_the_extra(group):
    def act() -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.parquet'", name="pyarrow.parquet")

    result = group(act)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[1] == "hint: pip install 'ignitetf[query]'"


def test_usage_error_of_a_command_exits_2(group):
    def act() -> None:
        raise UsageError("these do not go together")

    result = group(act)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: these do not go together\n")


def test_interrupt_exits_130_with_one_line(group):
    def act() -> None:
        raise KeyboardInterrupt

    result = group(act)
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_clean_up_that_fails_is_told_and_the_exit_code_still_says_interrupted(group, number):
    def act() -> None:
        try:
            raise KeyboardInterrupt(number)
        finally:
            try:
                raise OSError("cut")
            except OSError as error:
                raise ConnectError("the node is gone", hint="start it") from error

    result = group(act)
    assert result.exit_code == 128 + number
    assert result.stderr == "error: the node is gone\nhint: start it\ninterrupted\n"


def test_value_of_a_command_is_no_exit_code(group):
    def act() -> Any:
        return 3

    assert group(act).exit_code == 0


def test_closed_pipe_is_quiet():
    code = (
        "from ignitetf.cli import group\n"
        "import types, sys, typer\n"
        "m = types.ModuleType('m'); m.app = typer.Typer(); sys.modules['m'] = m\n"
        "m.app.command()(lambda: [print('x' * 100) for _ in range(100_000)])\n"
        "class G(group.LazyGroup): registry = {'act': ('m', '')}\n"
        "root = typer.Typer(cls=G); root.callback()(lambda: None)\n"
        "root(['act'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(30) == 1


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_output_that_nobody_wants(closed):
    """`>&-` and `2>&-`: Python then has no `sys.stdout` or `sys.stderr`."""
    shut = " ".join(f"{number}>&-" for number in closed)
    program = "from ignitetf.cli.main import main; main()"
    command = f'"$0" -c "{program}" config --output json {shut}'
    found = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    assert (found.stdout == "") == (1 in closed)


def test_an_encoding_without_a_character_is_told(group):
    def act() -> None:
        "→".encode("ascii")

    result = group(act)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: the output's encoding, ascii, has no character '\\u2192'\n"
        "hint: PYTHONIOENCODING=utf-8 changes it\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_tables_are_shown_in_every_encoding(encoding):
    letter = "e" if encoding == "ascii" else "é"
    code = (
        "import typer; from ignitetf.cli.group import LazyGroup\n"
        "from ignitetf.cli.output import show\n"
        "root = typer.Typer(cls=type('G', (LazyGroup,), {'registry': {'act': ('__main__', '')}}))\n"
        "app = typer.Typer(); root.callback()(lambda: None)\n"
        f"app.command()(lambda: show([{{'A': {letter!a}}}], 'table'))\n"
        "root(['act'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    rule = "─" if encoding == "utf-8" else "-"
    assert done.stderr == b""
    assert done.stdout.decode(encoding).split() == ["A", rule, letter]


def test_connection_options_reach_the_settings(group, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("pw\n")
    seen: dict[str, Any] = {}

    @options.connected
    def act(connect: options.Connect, word: str = "none") -> None:
        seen.update(settings=connect.settings(), word=word)

    args = ("--address", "a:1,b:2", "--username", "u", "--password-file", str(secret))
    result = group(act, *args, "--timeout", "7", "--tls", "--word", "w")
    assert result.exit_code == 0, result.stderr
    settings = seen["settings"]
    assert settings.addresses == ("a:1", "b:2")
    assert (settings.username, settings.password, settings.tls) == ("u", "pw", True)
    assert settings.request_timeout_s == 7
    assert seen["word"] == "w"


@pytest.mark.parametrize("args", [("--password",), ("--password", "--tls"), ("--password=",)])
def test_password_without_value_is_asked_for(group, monkeypatch, args):
    @options.connected
    def act(connect: options.Connect) -> None:
        print(connect.settings().password)

    result = group(act, "--username", "u", *args)
    assert result.exit_code == 1
    assert "cannot be asked for without a terminal" in result.stderr
    monkeypatch.setattr(options, "_ask_password", lambda _, name: f"of {name}")
    assert group(act, "--username", "u", *args).stdout == "of u\n"


@pytest.mark.parametrize("option", ["password", "key-password"])
def test_a_password_comes_from_file_environment_or_prompt_and_help_says_so(
    group, monkeypatch, tmp_path, option
):
    name = option.replace("-", "_")

    @options.connected
    def act(connect: options.Connect) -> None:
        print(getattr(connect.settings(), name))

    file = tmp_path / "secret"
    file.write_text("from file\n")
    assert group(act, f"--{option}-file", str(file)).stdout == "from file\n"
    monkeypatch.setenv(f"IGNITETF_{name.upper()}_FILE", str(file))
    assert group(act).stdout == "from file\n"
    monkeypatch.delenv(f"IGNITETF_{name.upper()}_FILE")
    monkeypatch.setenv(f"IGNITETF_{name.upper()}", "from environment")
    assert group(act).stdout == "from environment\n"
    result = group(act, f"--{option}")
    assert result.exit_code == 1 and f"--{option}-file" in result.stderr
    monkeypatch.setattr(options, "_ask_password", lambda *_: "typed")
    assert group(act, f"--{option}", "--tls").stdout == "typed\n"
    said = " ".join(group(act, "--help").stdout.split())
    assert said.index(f"--{option}-file") < said.index(f"--{option} ")
    assert "list of processes" in said and f"IGNITETF_{name.upper()}" in said


def test_config_masks_secrets_and_names_origins(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    monkeypatch.setenv("IGNITETF_PASSWORD", "hidden-word")
    result = run("config", "--address", "h:1", "--username", "u", "--output", "json")
    assert result.exit_code == 0, result.stderr
    assert "hidden-word" not in result.output
    import json

    rows = {row["setting"]: row for row in json.loads(result.stdout)}
    assert rows["addresses"] == {"setting": "addresses", "value": "h:1", "from": "argument"}
    assert (rows["password"]["value"], rows["password"]["from"]) == ("set", "environment")
    assert rows["home"]["value"] == str(tmp_path)


def test_no_node_listening_is_one_line_and_a_hint(unused_port):
    result = run("cache", "ls", "--address", f"127.0.0.1:{unused_port}")
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert str(unused_port) in error
    assert "ignitetf node start" in hint


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_kind_of_source_has_a_command_with_its_options():
    commands = {path[1]: command for path, command in leaves(get_command(app)) if path[0] == "load"}
    assert set(commands) == {name for name, kind in KINDS.items() if kind.help is not None}
    for name, command in commands.items():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        for option in KINDS[name].options:
            assert option.flag.partition("/")[0] in flags
        assert "--split" in flags or not KINDS[name].splits
        # `--key` is the key of the records here, that of the client certificate has another name.
        assert ("--tls-key" in flags) is any(o.name == "key" for o in KINDS[name].options)


def test_an_interrupt_of_the_imports_is_no_traceback():
    program = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from ignitetf.cli import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
