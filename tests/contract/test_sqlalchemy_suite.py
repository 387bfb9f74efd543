"""SQLAlchemy's own suite against the dialect, on a real node, in a process of its own.

Its plugin changes pytest, so it runs apart. A part of it by default; all of it with `-m soak`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.ports import free_port

pytestmark = pytest.mark.node
FOLDER = Path(__file__).parent / "sqlalchemy_suite"
ROOT = FOLDER.parents[2]
PART = " or ".join(
    (
        "StringTest",
        "NumericTest",
        "UuidTest",
        "BinaryTest",
        "BooleanTest",
        "FetchLimitOffsetTest and not cast",
        "CompoundSelectTest",
        "LikeFunctionsTest",
        "PostCompileParamsTest",
        "RowFetchTest",
        "SimpleUpdateDeleteTest",
        "NormalizedNameTest",
    )
)


def suite(address, *options, limit):
    """Run it; returns how many tests passed, and its output."""
    paths = os.pathsep.join([str(ROOT), str(FOLDER), os.environ.get("PYTHONPATH", "")])
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", "pytest.ini", "--rootdir", "."),
        *("--noconftest", "-p", "registered", "-p", "no:cacheprovider"),
        *("-p", "sqlalchemy.testing.plugin.pytestplugin"),
        *("--dburi", f"ignite://{address}/PUBLIC"),
        *("--requirements", "ignitetf.sqlalchemy.requirements:Requirements"),
        *("suite.py", *options),
    ]
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=limit
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return int(passed[1])


def test_a_part_of_the_suite_passes(address):
    assert suite(address, "-k", PART, limit=120) > 80


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_whole_suite_passes():
    from ignitetf.node import Node

    with Node.start("sqlalchemy", port=free_port(1), memory="1g") as node:
        assert suite(node.addresses[0], limit=1000) > 550
