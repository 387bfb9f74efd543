"""What the benchmarks share: turns, ratios, and what is refused before anything is measured."""

import sys

import pytest
from typer.testing import CliRunner

from ignitetf.bench.turns import in_turn, median_ratio, rows_a_second
from ignitetf.cli.main import app
from ignitetf.errors import ConfigError, MissingExtra


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
    with pytest.raises(ConfigError, match="there is no such folder"):
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
        (["--plot", "/missing/rates.png"], "there is no such folder"),
        (["--nodes", "2"], "--nodes goes with --rows partitions"),
        (["--partitions", "2", "--partitions", "4"], "--rows partitions alone"),
    ],
)
def test_the_command_refuses_before_it_connects(words, told):
    # Nothing answers at that address.
    done = CliRunner().invoke(app, ["bench", "read", *words, "--address", "127.0.0.1:1"])
    assert done.exit_code != 0
    assert told in done.output
