"""Completion of live names: what is completed, and that it is quick or silent."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_tree import leaves
from helpers.terminals import Terminal
from typer.main import get_command

import ignitetf
from ignitetf.cli.complete import ARGUMENTS, FLAGS, wanted
from ignitetf.cli.main import app

COMMANDS = dict(leaves(get_command(app)))


def ask(*, home, shell="bash", line, **more):
    words = line.split(" ")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("IGNITETF_")},
        "IGNITETF_HOME": str(home),
        "_IGNITETF_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        **more,
    }
    command = [sys.executable, "-m", "ignitetf"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize("path", ARGUMENTS, ids=" ".join)
def test_the_commands_are_there_and_their_flags_are_known(path):
    assert path in COMMANDS
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "is_flag", False):
            assert {*parameter.opts, *parameter.secondary_opts} <= FLAGS


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("head ", "data"),
        ("head MNIST", "data"),
        ("head MNIST ", None),
        ("head -n 3 M", "data"),
        ("head -n ", None),
        ("head --fields=A M", "data"),
        ("head --no", None),
        ("split X train=0.5 ", None),
        ("cache drop --yes ", "data"),
        ("table describe ", "table"),
        ("stop ", "job"),
        ("fs cp -r igfs:///a ", "file"),
        ("fs put here ", "file"),
        ("fs put ", None),
        ("launch --data ", "data"),
        ("cache ls --node ", "node"),
        ("node stop --name ", "node"),
        ("profile rm ", "profile"),
        ("query ", None),
        ("", None),
    ],
)
def test_what_a_word_names(line, kind):
    *words, word = line.split(" ")
    assert wanted(words, word) == kind


def test_names_of_this_machine_in_every_shell(tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    for name in ("lab", "later", "other"):
        (folder / f"{name}.json").write_text(json.dumps({"address": "h:1"}))
    line = "ignitetf profile rm la"
    assert ask(home=tmp_path, line=line).stdout.split() == ["lab", "later"]
    found = ask(home=tmp_path, line=line, shell="zsh").stdout
    assert found.startswith("_arguments ") and '"lab"' in found and '"later"' in found
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert ask(home=tmp_path, line=line, shell="fish", **action).stdout.split() == ["lab", "later"]
    action = {"_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    assert ask(home=tmp_path, line=line, shell="fish", **action).returncode == 0
    # Typer completes the rest.
    assert ask(home=tmp_path, line="ignitetf prof").stdout.split() == ["profile"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_complete_what_is_typed(tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "laboratory.json").write_text("{}")
    program = tmp_path / "bin" / "ignitetf"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ignitetf "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    own = {"IGNITETF_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": path, "TERM": "xterm"}
    own |= {"PYTHONPATH": str(Path(ignitetf.__file__).parents[1])}
    asked = {**own, "_IGNITETF_COMPLETE": f"source_{shell}"}
    script = tmp_path / "completion"
    done = subprocess.run([program], capture_output=True, text=True, env=asked, timeout=60)
    script.write_text(done.stdout)
    start = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    terminal = Terminal(shell, *start, size=(24, 80), env={**own, "PS1": "$ "})
    try:
        ready = "autoload -Uz compinit; compinit -u; " if shell == "zsh" else ""
        terminal.type(f"{ready}source {script}; echo rea''dy\r")
        terminal.read_until("ready")
        terminal.type("ignitetf profile rm labo\t")
        terminal.read_until("laboratory|ratory")
    finally:
        terminal.close()


def test_a_cluster_that_is_silent_or_away_is_silence(tmp_path):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        for address in (f"127.0.0.1:{port}", "127.0.0.1:1"):
            line = f"ignitetf head --address {address} "
            done = ask(home=tmp_path, line=line)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_imports_no_heavy_package():
    code = "import sys, ignitetf.cli.complete, ignitetf.cli.live; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pyignite", "typer", "rich"} & set(out.stdout.split())
