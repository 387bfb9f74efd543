"""What an export may replace."""

import os
import stat

import pytest

from ignitetf.errors import ConfigError, SourceError
from ignitetf.export.target import Target


@pytest.mark.parametrize("folder", [False, True])
def test_a_pipe_or_device_is_never_replaced(tmp_path, folder):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe or a device"):
        Target(str(tmp_path / "pipe"), folder=folder, overwrite=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


ODD = ["", " ", ".", "..", "/", "//", "./", "../", "a\0b", "a\nb", "x" * 5000, "x" * 256, "nosuch://x",
       "none/x", "{cwd}", "{above}"]  # fmt: skip


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_a_target_without_a_name_of_its_own_is_refused_and_nothing_changes(
    tmp_path, monkeypatch, name, folder
):
    here = tmp_path / "above" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises((ConfigError, SourceError)):
        Target(name.format(cwd=here, above=here.parent), folder=folder, overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["above", "here"]
    assert here.samefile(".")


def test_the_longest_name_of_a_file_system_is_a_target(tmp_path):
    name = "ü" * 120 + ".parquet"
    with Target(str(tmp_path / name), folder=False, overwrite=False) as target:
        target.open(name).close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_replaced_when_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ConfigError, match="exists"):
        Target(str(tmp_path / "file"), folder=False, overwrite=False)
    wanted = Target(str(tmp_path / "file"), folder=False, overwrite=True)
    with wanted as target, target.open("file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
