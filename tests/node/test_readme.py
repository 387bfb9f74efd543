"""The README's tour runs, and prints what the README says it prints."""

import csv
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.node
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = {"seconds", "rows_per_s", "mb_per_s"}


def tour():
    """(command, expected output) pairs of the block after the marker."""
    block = README.split("<!-- tour -->")[1].split("```console\n")[1].split("```")[0]
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def without_rates(text):
    """The rows of a CSV text as dicts, without what is measured."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in rows]


def run(command, address, folder):
    words = shlex.split(command)
    assert words[0] == "ignitetf"
    program = [sys.executable, "-c", "from ignitetf.cli.main import main; main()"]
    env = {**os.environ, "IGNITETF_ADDRESS": address}
    done = subprocess.run(
        program + words[1:], cwd=folder, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tour_prints_what_the_readme_says(client, address, mnist_dir, tmp_path):
    (tmp_path / "mnist").symlink_to(mnist_dir, target_is_directory=True)
    for name in ("MNIST_TRAIN", "MNIST_TEST"):
        client.sql(f"DROP TABLE IF EXISTS {name}")
    commands = tour()
    assert len(commands) >= 4
    for command, expected in commands:
        printed = run(command, address, tmp_path).strip()
        if command.startswith("ignitetf cache ls"):
            # Other tests share the node, and its catalog.
            ours = [line for line in printed.splitlines() if line in expected.splitlines()]
            assert [x for x in expected.splitlines() if "CATALOG" not in x] == [
                x for x in ours if "CATALOG" not in x
            ]
        elif "--output csv" in command:
            assert without_rates(printed) == without_rates(expected), command
        else:
            assert printed == expected, command


def test_every_command_is_in_the_readme():
    from ignitetf.cli.main import COMMANDS

    listed = re.search(r"^Commands: (.*?);", README, re.MULTILINE)
    assert listed
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(COMMANDS)
