"""Rates beside Java's thin client and tensorflow-io's op: `pytest -m bench -s tests/bench`.

All read the same rows in one run, in turn. The op needs a Python of its own, whose path is in
`IGNITETF_TFIO_PYTHON` (Python 3.7 to 3.9 with `tensorflow==2.7.*` and `tensorflow-io==0.23.1`).
Nothing about time is asserted.
"""

import contextlib
import functools
import os
import subprocess
from pathlib import Path

import pytest
from helpers.java_programs import java_command

from ignitetf.bench.read import bench_read
from ignitetf.bench.rows import PROFILES

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.bench, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "peers"
SMALL_BYTES = 40 << 10
ROUNDS = 5


class Program:
    """A program that answers each line with rows and nanoseconds."""

    def __init__(self, *command):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def answer(self):
        return self.process.stdout.readline().split()

    def ask(self, cache, *, page, batch=None):
        words = (cache, page) if batch is None else (cache, page, batch)
        print(*words, file=self.process.stdin, flush=True)
        rows, nanoseconds = self.answer()
        return int(rows), int(nanoseconds) / 1e9


@pytest.fixture(scope="module")
def programs(client, node_home, tmp_path_factory):
    address = client.settings.addresses[0]
    source = HERE / "JavaScan.java"
    with contextlib.ExitStack() as stack:
        command = java_command(source, node_home, tmp_path_factory.mktemp("java"))
        found = {"java": stack.enter_context(Program(*command, address))}
        if python := os.environ.get("IGNITETF_TFIO_PYTHON"):
            found["tfio"] = stack.enter_context(Program(python, HERE / "tfio_scan.py", address))
            assert found["tfio"].answer() == ["ready"]
        yield found


def others(programs, profile):
    """Each peer with several page sizes, as its best one is what counts."""
    java, tfio = programs["java"], programs.get("tfio")
    batch, small = profile.batch, profile.row_bytes < SMALL_BYTES
    ways = {}
    for page in (1_000, 5_000, 20_000) if small else (4, 16, 40):
        shown = f"pages of {page:,}"
        ways[f"Java, {shown}"] = functools.partial(java.ask, page=page)
        if tfio is not None:
            ways[f"tensorflow-io, batch({batch}), {shown}"] = functools.partial(
                tfio.ask, page=page, batch=batch
            )
    if tfio is not None and small:
        single = functools.partial(tfio.ask, page=20_000, batch=0)
        ways["tensorflow-io, single elements"] = single
    return ways


@pytest.mark.parametrize("profile", ["mnist", "1mb"])
def test_rates_beside_other_clients(client, programs, profile):
    chosen = PROFILES[profile]
    more = others(programs, chosen)
    ours = {f"batch({chosen.batch}), reduce", "single elements, reduce", "numpy()"}
    rates = bench_read(
        client.settings,
        profile,
        rounds=ROUNDS,
        ways=ours | set(more) | {"pyignite scan"},
        more=more,
    )
    print()
    for rate in rates:
        print(
            f"{rate.profile:6} {rate.way:44} {rate.rows_per_s:12,.0f} rows/s"
            f" {rate.mb_per_s:8,.0f} MB/s {rate.ratio:.2f}"
        )
    assert {rate.way for rate in rates} >= set(more)
