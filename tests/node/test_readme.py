"""The README's tour runs, and prints what the README says it prints."""

from pathlib import Path

import pytest
from helpers.pages import blocks, run, same, steps

pytestmark = pytest.mark.node
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tour():
    """(command, expected output) pairs of the block after the marker."""
    return steps(blocks(README.split("<!-- tour -->")[1])[0][2])


def test_the_tour_prints_what_the_readme_says(client, address, mnist_dir, tmp_path):
    (tmp_path / "mnist").symlink_to(mnist_dir, target_is_directory=True)
    for name in ("MNIST_TRAIN", "MNIST_TEST"):
        client.sql(f"DROP TABLE IF EXISTS {name}")
    commands = tour()
    assert len(commands) >= 4
    for command, expected in commands:
        printed = run(command, address, tmp_path)
        if command.startswith("ignitetf cache ls"):
            # Other tests share the node, and its catalog.
            ours = [line for line in printed.splitlines() if line in expected.splitlines()]
            assert [x for x in expected.splitlines() if "CATALOG" not in x] == [
                x for x in ours if "CATALOG" not in x
            ]
        else:
            assert same(command, printed, expected), (command, printed)
