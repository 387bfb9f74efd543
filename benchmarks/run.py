"""Measure, print the figures and add them to the history: `python benchmarks/run.py read --help`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it when it is imported

# The benches are imported where they are run: some need TensorFlow or pyarrow, others do without.
from history import HISTORY, Figure, append, peak_mib, surroundings

from ignitetf import connect
from ignitetf.bench.fs import bench_fs
from ignitetf.bench.read import BARE_AHEAD, Rate, bench_read
from ignitetf.bench.rows import PROFILES, Profile, sized
from ignitetf.bench.sweep import PARTITIONS, SWEEP, bench_partitions
from ignitetf.bench.write import PNG, bench_write
from ignitetf.bench.write import PROFILES as WRITE_PROFILES
from ignitetf.cli.output import note, show
from ignitetf.errors import IgniteTFError
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.settings import Settings

# Ways of ours, whose ratio to the bare socket that asks ahead is kept as well.
_OURS = ("numpy()", "batch(")
_READ = ("mnist", "1mb", "blobs", "sql")
_MIB = 1 << 20


def read(args: argparse.Namespace) -> list[Figure]:
    """Ways of reading, beside bare sockets, pyignite, arrays in memory and TFRecord files."""
    rates: list[Rate] = []
    for profile in args.rows or _READ:
        note(f"reading {profile} rows, {args.rounds} rounds")
        if profile == SWEEP:
            rates += _sweep(args)
            continue
        chosen = sized(PROFILES[profile], args.count)
        with tempfile.TemporaryDirectory() as folder:
            rates += bench_read(
                args.settings,
                profile,
                rounds=args.rounds,
                rows=args.count,
                ways=args.way,
                more=_ways_beside(chosen, Path(folder)),
            )
    return [figure for rate in rates for figure in _read_figures(rate, args.rounds)]


def _ways_beside(profile: Profile, folder: Path) -> dict[str, Any]:
    """The same rows without Ignite; no ways where TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return {}
    from beside import ways_beside

    return ways_beside(profile, folder)


def _read_figures(rate: Rate, rounds: int) -> list[Figure]:
    """The rate with its ratio to the bare socket; for our own ways also to the one that asks ahead."""
    profile, rows_per_s = _profile(rate), rate.rows_per_s
    found = [Figure("read", profile, rate.way, rows_per_s, "rows/s", rate.ratio, rounds)]
    if rate.ratio_ahead is not None and rate.way.startswith(_OURS):
        way = f"{rate.way}, to {BARE_AHEAD}"
        found.append(Figure("read", profile, way, rows_per_s, "rows/s", rate.ratio_ahead, rounds))
    return found


def _sweep(args: argparse.Namespace) -> list[Rate]:
    return bench_partitions(
        lambda: args.settings,
        nodes=args.nodes or (),
        partitions=args.partitions or PARTITIONS,
        rows=args.count,
        rounds=args.rounds,
        note=note,
    )


def _profile(rate: Rate) -> str:
    """The profile with what makes its ratios incomparable with those of other runs."""
    name = rate.profile
    if name == SWEEP:
        name = f"{rate.partitions} partitions, {rate.nodes} nodes"
    return name if rate.rows == PROFILES[rate.profile].rows else f"{name}, {rate.rows:,} rows"


def write(args: argparse.Namespace) -> list[Figure]:
    """Ways of writing, beside encoded requests and pyignite, and reads from rows and blocks."""
    rates = []
    for profile in args.rows or (*WRITE_PROFILES, PNG):
        note(f"writing {profile} rows, {args.rounds} rounds")
        rates += bench_write(args.settings, profile, rounds=args.rounds)
    return [
        Figure("write", r.profile, r.way, r.rows_per_s, "rows/s", r.to_limit, args.rounds)
        for r in rates
    ]


def fs(args: argparse.Namespace) -> list[Figure]:
    """igfs:// beside bare requests with the same chunks."""
    found = bench_fs(args.settings, size_bytes=args.size * _MIB, rounds=args.rounds, say=note)
    ways = [name.removesuffix("_ratio") for name in found if name.endswith("_ratio")]
    bare = [name for name in found if name.startswith("bare_")]
    profile = f"{args.size} MiB"
    return [
        Figure("fs", profile, way, found[way], "MB/s", found.get(f"{way}_ratio"), args.rounds)
        for way in [*bare, *ways]
        if found[way] is not None
    ]


def order(args: argparse.Namespace) -> list[Figure]:
    """Order, shuffle and state beside a plain read, and the memory of shuffled windows."""
    from order import order_figures

    return order_figures(args.settings, args.rounds, args.count)


def epochs(args: argparse.Namespace) -> list[Figure]:
    """Short epochs by `reduce`, a loop and `fit`, beside a bare socket in the same pipeline."""
    from epochs import epoch_figures

    return epoch_figures(args.settings, args.rounds, args.count)


def device(args: argparse.Namespace) -> list[Figure]:
    """Batches of JAX or PyTorch on a device, copied and gathered, beside those on the host."""
    from device import device_figures

    profiles = args.rows or ("mnist", "1mb")
    return [
        figure
        for profile in profiles
        for figure in device_figures(
            args.settings, args.rounds, args.count, profile, args.framework, args.device
        )
    ]


def distance(args: argparse.Namespace) -> list[Figure]:
    """Reads, loads, files and queries through a proxy with delay, beside bare requests."""
    from distance import DELAYS_MS, distance_figures

    return distance_figures(args.settings, args.rounds, args.delay or DELAYS_MS)


def keys(args: argparse.Namespace) -> list[Figure]:
    """Rows by key, in order and in a random one, beside bare GET_ALL requests."""
    from keys import key_figures

    profiles = args.rows or ("mnist", "1mb")
    return [
        figure
        for profile in profiles
        for partitions in args.partitions or (8, 1024)
        for figure in key_figures(args.settings, args.rounds, args.count, profile, partitions)
    ]


def tls(args: argparse.Namespace) -> list[Figure]:
    """Reads and loads over TLS beside the same ones in plain text; starts two nodes."""
    from tls import tls_figures

    return tls_figures(args.rounds, args.count)


def main(words: Sequence[str] | None = None) -> int:
    """Run one bench; the exit code is the result."""
    args = _arguments(words)
    try:
        args.settings = Settings.resolve(address=args.address)
        # Before the run, as a commit may follow while it lasts.
        around = surroundings(_ignite(args))
        figures = args.bench(args)
    except IgniteTFError as error:
        note(f"error: {error}" + (f" ({error.hint})" if error.hint else ""))
        return 1
    show([asdict(figure) for figure in figures])
    if not args.no_history:
        append(args.history, around | {"peak_mib": peak_mib()}, figures)
        note(f"{len(figures)} lines were added to {args.history.name}")
    return 0


def _ignite(args: argparse.Namespace) -> str:
    """The version of the cluster."""
    if args.bench is tls or (args.bench is read and args.nodes):
        return IGNITE_VERSION  # of the nodes to be started
    with connect(settings=args.settings) as client:
        return str(client.sql("SELECT VERSION FROM SYS.NODES").fetchall()[0][0])


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/run.py", description=__doc__)
    benches = parser.add_subparsers(required=True)

    def bench(run: Callable[[argparse.Namespace], list[Figure]], rounds: int) -> Any:
        made = benches.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
        made.set_defaults(bench=run)
        made.add_argument("--rounds", type=int, default=rounds, help="times each way is run")
        made.add_argument("--address", help="HOST:PORT; else what `ignitetf config` shows")
        made.add_argument("--history", type=Path, default=HISTORY, help="the file to append to")
        made.add_argument("--no-history", action="store_true", help="print only")
        return made.add_argument

    many = {"action": "append", "type": int, "metavar": "N"}
    option = bench(read, 7)
    option("--rows", action="append", choices=list(PROFILES), help=f"default: {', '.join(_READ)}")
    option("--count", type=int, metavar="N", help="rows, instead of the profile's own number")
    option("--way", action="append", metavar="NAME", help="only this way and the bare sockets")
    option("--partitions", **many, help="for --rows partitions; default: 1, 2, 4 ... 2,048")
    option("--nodes", **many, help="for --rows partitions alone: embedded nodes to start")
    option = bench(write, 5)
    option("--rows", action="append", choices=[*WRITE_PROFILES, PNG], help="default: all")
    option = bench(fs, 3)
    option("--size", type=int, default=256, metavar="MIB", help="size of the file in MiB")
    option = bench(device, 5)
    option("--framework", choices=("jax", "torch"), default="torch", help="default: torch")
    option("--device", default="", metavar="NAME", help='such as "cuda:0"; else the default one')
    option("--rows", action="append", choices=("mnist", "1mb"), help="default: both")
    option("--count", type=int, metavar="N", help="rows, instead of the profile's own number")
    option = bench(keys, 7)
    option("--rows", action="append", choices=("mnist", "1mb"), help="default: both")
    option("--partitions", **many, help="default: 8, 1,024")
    option("--count", type=int, metavar="N", help="rows, instead of the profile's own number")
    option = bench(distance, 5)
    option("--delay", **(many | {"metavar": "MS"}), help="each way; default: 10, 50")
    for run in (order, epochs, tls):
        bench(run, 7)("--count", type=int, metavar="N", help="rows")
    args = parser.parse_args(words)
    if args.bench is read and args.nodes and args.rows != [SWEEP]:
        parser.error("--nodes goes with --rows partitions alone")
    return args


if __name__ == "__main__":
    sys.exit(main())
