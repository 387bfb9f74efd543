"""Local files that commands write: complete or as before, and nothing else is touched."""

import os
import stat
import threading

import pytest

from ignitetf.cli.files import whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["file", "n" * 255, "file.part", "*"])
def test_a_file_appears_complete_and_no_other_is_touched(tmp_path, name):
    beside = {"file.part": b"mine", "file": b"old", ".file.part": b"too"}
    for other, data in beside.items():
        (tmp_path / other).write_bytes(data)
    with whole(tmp_path / name) as place:
        place.write_bytes(b"new")
        assert {n: (tmp_path / n).read_bytes() for n in beside} == beside
    now = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert now == {**beside, name: b"new"}


def test_after_an_exception_all_is_as_before(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), whole(tmp_path / "file") as place:
        place.write_bytes(b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_links_and_permissions_stay(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("later")
    for name in ("link", "dangling"):
        with whole(tmp_path / name) as place:
            place.write_bytes(name.encode())
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "real").read_bytes() == b"link"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640
    assert (tmp_path / "later").read_bytes() == b"dangling"


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with whole(tmp_path / "pipe") as place:
        place.write_bytes(b"data")
    reader.join(10)
    assert got == [b"data"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_an_error_names_the_path_that_was_asked_for(tmp_path):
    path = tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as error, whole(path) as place:
        place.open("wb")
    assert error.value.filename == str(path)
