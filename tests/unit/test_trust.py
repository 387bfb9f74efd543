"""A file that another user could have changed is neither run nor believed."""

import os

import pytest

from ignitetf.errors import ConfigError
from ignitetf.profiles import read_profile, write_profile
from ignitetf.trust import check_trust, distrust

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
OTHER = 54_321  # a user and a group that nobody is


def private(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_what_is_mine_is_trusted_and_so_is_what_does_not_exist(tmp_path):
    file = private(tmp_path / "a" / "b" / "file")
    assert distrust(file) is None
    assert distrust(tmp_path / "a" / "none" / "file") is None
    (tmp_path / "link").symlink_to("a/b")
    assert distrust(tmp_path / "link" / "file") is None
    check_trust(file, "file")


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o722])
@pytest.mark.parametrize("which", ["a", "a/b", "a/b/file"])
def test_what_all_may_write_is_not_trusted_at_any_place_of_the_path(tmp_path, which, mode):
    file = private(tmp_path / "a" / "b" / "file")
    (tmp_path / which).chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in (file, tmp_path / "link" / "b" / "file"):
        assert which in distrust(path)
        with pytest.raises(ConfigError, match="another user could change it"):
            check_trust(path, "file")


def test_a_folder_with_the_sticky_bit_is_as_good_as_what_is_in_it(tmp_path):
    file = private(tmp_path / "shared" / "mine" / "file")
    (tmp_path / "shared").chmod(0o1777)
    assert distrust(file) is None
    if os.geteuid() == 0:
        os.chown(tmp_path / "shared" / "mine", OTHER, -1)
        assert str(OTHER) in distrust(file)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to chown")
@pytest.mark.parametrize("which", ["a", "a/b", "a/b/file", "link"])
def test_what_belongs_to_another_user_is_not_trusted(tmp_path, which):
    private(tmp_path / "a" / "b" / "file")
    (tmp_path / "link").symlink_to("a")
    os.chown(tmp_path / which, OTHER, -1, follow_symlinks=False)
    assert f"belongs to user {OTHER}" in distrust(tmp_path / "link" / "b" / "file")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to chown")
def test_a_group_of_others_is_not_trusted_with_writing(tmp_path):
    file = private(tmp_path / "a" / "file")
    os.chown(tmp_path / "a", -1, OTHER)
    (tmp_path / "a").chmod(0o750)
    assert distrust(file) is None
    (tmp_path / "a").chmod(0o770)
    assert f"group {OTHER} may write" in distrust(file)
    os.chown(tmp_path / "a", -1, 0)
    assert distrust(file) is None


def test_a_circle_of_links_ends(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "symbolic links" in distrust(tmp_path / "a" / "file")


def test_a_profile_that_others_may_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path / "home"))
    path = write_profile("p", {"addresses": ["127.0.0.1:1"]})
    assert read_profile("p")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="another user could change it"):
        read_profile("p")
