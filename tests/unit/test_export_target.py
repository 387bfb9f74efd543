"""What an export may replace."""

import os
import stat

import pytest

from ignitetf.errors import ConfigError
from ignitetf.export.target import Target


@pytest.mark.parametrize("folder", [False, True])
def test_a_pipe_or_device_is_never_replaced(tmp_path, folder):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe or a device"):
        Target(str(tmp_path / "pipe"), folder=folder, overwrite=True)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_is_replaced_when_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ConfigError, match="exists"):
        Target(str(tmp_path / "file"), folder=False, overwrite=False)
    wanted = Target(str(tmp_path / "file"), folder=False, overwrite=True)
    with wanted as target, target.open("file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
