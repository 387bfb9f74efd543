"""What the benchmarks share: turns, ratios, history, and what is refused before it is measured."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.cli.main import app
from ignitetf.errors import ConfigError, MissingExtra

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_ways_take_turns_in_both_orders_after_a_round_that_does_not_count(monkeypatch, rounds):
    ran, ended, collected = [], [], []
    # The real one goes through all that the tests before left, for a second.
    monkeypatch.setattr("ignitetf.bench.turns.gc.collect", lambda: collected.append(len(ran)))

    def way(name):
        return lambda: ran.append(name) or len(ran)

    found = in_turn({name: way(name) for name in "abc"}, rounds, ended.append)
    assert "".join(ran) == ("cbaabc" * rounds)[: 3 * (rounds + 1)]
    assert ended == list(range(rounds + 1))
    assert collected == list(range(len(ran)))  # before each way
    # Everything that ran is there once, but for the three of the first round.
    assert list(found) == list("abc")
    assert all(ran[number - 1] == name for name in found for number in found[name])
    assert sorted(n for given in found.values() for n in given) == list(range(4, len(ran) + 1))
    assert {len(given) for given in found.values()} == {rounds}


def test_ratios_are_those_of_each_round():
    assert median_ratio([1.0, 20.0, 3.0], [2.0, 10.0, 3.0]) == 1.0
    assert median_ratio([1.0, 2.0], [3.0, 3.0]) == 0.5
    assert median_ratio([1.0], [3.0]) == 0.333
    assert median_ratio([1.0], None) is None
    with pytest.raises(ValueError, match="shorter"):
        median_ratio([1.0, 2.0], [3.0])


def test_rows_a_second_is_rows_by_time(monkeypatch):
    ticks = iter([10.0, 10.5])
    monkeypatch.setattr("ignitetf.bench.turns.time.perf_counter", lambda: next(ticks))
    assert rows_a_second(lambda: 30)() == 60.0


@pytest.fixture
def check_plot():
    from ignitetf.bench.plot import check_plot

    return check_plot


def test_a_plot_needs_its_folder(check_plot, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the folder does not exist"):
        check_plot(tmp_path / "missing" / "rates.png")
    check_plot(tmp_path / "rates.png")
    assert list(tmp_path.iterdir()) == []


def test_a_plot_needs_matplotlib(check_plot, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match="matplotlib") as caught:
        check_plot(tmp_path / "rates.png")
    assert "ignitetf[plot]" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plot", "/missing/rates.png"], "the folder does not exist"),
        (["--nodes", "2"], "--nodes needs --rows partitions"),
        (["--partitions", "2", "--partitions", "4"], "--rows partitions alone"),
    ],
)
def test_the_command_refuses_before_it_connects(words, told):
    # Nothing answers at that address.
    done = CliRunner().invoke(app, ["bench", "read", *words, "--address", "127.0.0.1:1"])
    assert done.exit_code != 0
    assert told in done.output


BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def history(monkeypatch):
    """The module of benchmarks/, which are programs beside each other, not a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import history

    yield history
    del sys.modules["history"]


def figure(history, **changed):
    usual = {"bench": "read", "profile": "mnist", "way": "numpy()", "median": 12.5}
    usual |= {"unit": "rows/s", "ratio": 1.1, "rounds": 7}
    return history.Figure(**(usual | changed))


def entry(commit="aa", **changed):
    usual = {"commit": commit, "machine": "M", "bench": "read", "profile": "mnist"}
    return usual | {"way": "numpy()", "ratio": 1.0} | changed


def test_a_run_is_appended_behind_the_runs_before(history, tmp_path):
    path, around = tmp_path / "history.jsonl", {"date": "2026-01-01", "commit": "aa"}
    history.append(path, around, [figure(history), figure(history, way="é", ratio=None)])
    before = path.read_bytes()
    history.append(path, around | {"commit": "bb"}, [figure(history)])
    assert path.read_bytes().startswith(before)
    found = history.load(path)
    assert [(line["commit"], line["way"], line["ratio"]) for line in found] == [
        ("aa", "numpy()", 1.1),
        ("aa", "é", None),
        ("bb", "numpy()", 1.1),
    ]


@pytest.mark.parametrize("line", ["{", "[1]", "7"])
def test_a_damaged_line_of_the_history_is_named(history, tmp_path, line):
    path = tmp_path / "history.jsonl"
    path.write_text(f"{json.dumps(entry())}\n{line}\n")
    with pytest.raises(ValueError, match=r"history\.jsonl, line 2"):
        history.load(path)


def test_the_surroundings_name_commit_machine_and_versions(history):
    if not (BENCHMARKS.parent / ".git").exists():
        pytest.skip("not a git checkout")
    found = history.surroundings("2.17.0")
    assert set(found) == {"date", "commit", "machine", "versions"}
    assert all(found.values())
    assert found["versions"]["ignite"] == "2.17.0" and "numpy" in found["versions"]


def drawn(folder, entries, *words):
    """Exit code and messages of plot.py, and the picture."""
    (folder / "history.jsonl").write_text("".join(f"{json.dumps(e)}\n" for e in entries))
    command = [sys.executable, BENCHMARKS / "plot.py", folder / "rates.png"]
    command += ["--history", folder / "history.jsonl", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, folder / "rates.png"


def test_the_history_is_drawn_with_a_panel_for_each_profile(tmp_path):
    entries = [
        entry("aa", profile=profile, way=way, ratio=ratio)
        for profile in ("mnist", "1mb")
        for way, ratio in (("numpy()", 1.0), ("pyignite scan", 0.1), ("bare_put", None))
    ]
    entries += [{**one, "commit": "bb"} for one in entries]
    heights = []
    for words in ((), ("--profile", "mnist")):
        code, told, path = drawn(tmp_path, entries, *words)
        assert code == 0, told
        with Image.open(path) as image:
            heights.append(image.height)
    assert heights[0] == 2 * heights[1]


def test_without_ratios_nothing_is_drawn(tmp_path):
    code, told, path = drawn(tmp_path, [entry(ratio=None)])
    assert code == 1 and "no such ratio" in told and not path.exists()


def checked(folder, entries, *words):
    """Exit code and output of check_history.py."""
    path = folder / "history.jsonl"
    path.write_text("".join(f"{json.dumps(e)}\n" for e in entries))
    command = [sys.executable, BENCHMARKS / "check_history.py", "--history", path, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("newest", "code"), [(1.2, 0), (0.91, 0), (0.9, 1), (0.2, 1)])
def test_a_ratio_that_falls_by_a_tenth_below_the_median_of_the_runs_before_fails(
    tmp_path, newest, code
):
    # A single bad or good run before does not count, another machine or way neither.
    ratios = (1.0, 1.0, 0.1, 9.0, 1.0)
    entries = [entry(ratio=ratio) for ratio in (*ratios, newest)]
    entries += [entry(machine="N", ratio=ratio) for ratio in (50.0, 50.0)]
    entries += [entry(way="numpy", ratio=0.01, peak_mib=12.5), entry(way="bare", ratio=None)]
    found, told = checked(tmp_path, entries)
    assert found == code, told
    assert [line.split()[0] for line in told.splitlines()] == ["FALLEN" if code else "ok", "ok"]
    assert f"read: mnist: numpy(): {newest:g}, before 1 (5 runs)" in told


def test_a_history_without_a_run_before_fails(tmp_path):
    code, told = checked(tmp_path, [entry(), entry(machine="N")])
    assert code == 1 and "no ratio of two runs" in told


def test_only_the_benches_asked_for_are_checked(tmp_path):
    entries = [entry(bench=name, ratio=ratio) for ratio in (1, 0.5) for name in ("read", "fs")]
    entries += [entry(bench="fs", ratio=1)]
    assert checked(tmp_path, entries, "--bench", "fs")[0] == 0
    assert checked(tmp_path, entries)[0] == 1


def test_the_peak_memory_of_a_run_is_that_of_the_process(history):
    ballast = np.ones(64 << 20, np.uint8)
    assert history.peak_mib() >= ballast.nbytes >> 20


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.name)
def test_what_a_benchmark_imports_is_there(path):
    """They are run by hand, so that a name which was removed would be found late."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ignitetf"):
            try:
                module = importlib.import_module(node.module)
            except MissingExtra:
                continue
            for name in node.names:
                found = hasattr(module, name.name)
                assert found or importlib.util.find_spec(f"{node.module}.{name.name}"), name.name
