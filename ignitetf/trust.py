"""Check whether another user could have changed a file that this process runs or trusts.

path -> **the reason not to trust it** -> node, profiles, state

A file is trusted if it, each folder on its path and each symbolic link there belong to this user or
to root, and no other user may write to them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from ignitetf.errors import ConfigError

__all__ = ["check_trust", "distrust"]

_MOST_LINKS: Final = 40  # as Linux


def distrust(path: Path) -> str | None:
    """Return why a file or folder cannot be trusted; None if it can, or does not exist.

    The existing part of its path is checked. A folder with the sticky bit, such as /tmp, may be
    writable by all, because only owners can replace its entries. On Windows, everything is trusted.
    """
    if os.name != "posix":
        return None
    trusted = {0, os.geteuid(), Path("/").lstat().st_uid}
    rest, here, links = [*reversed(path.absolute().parts[1:])], Path("/"), 0
    while True:
        try:
            status = here.lstat()
            if stat.S_ISLNK(status.st_mode) and status.st_uid in trusted and links < _MOST_LINKS:
                target = here.readlink()
                links += 1
                here = Path("/") if target.is_absolute() else here.parent
                rest += reversed([part for part in target.parts if part != "/"])
            elif reason := _reason(here, status, trusted):
                return reason
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{here} cannot be inspected: {error.strerror}"
        if not rest:
            return None
        part = rest.pop()
        here = here.parent if part == ".." else here / part


def check_trust(path: Path, what: str) -> None:
    """Raise ConfigError if another user could have changed a file or folder, named `what`."""
    if reason := distrust(path):
        raise ConfigError(
            f"{what} {path} is not used, because another user could change it: {reason}",
            hint="make it yours (chown), not writable by others (chmod go-w), or"
            " name another folder with IGNITETF_HOME",
        )


def _reason(path: Path, status: os.stat_result, trusted: set[int]) -> str | None:
    if status.st_uid not in trusted:
        return f"{path} belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is one of more than {_MOST_LINKS} symbolic links"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"every user may write to {path}"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"group {status.st_gid} may write to {path}"
    return None


def _is_own_group(number: int) -> bool:
    """True if no other user is in a group: root's, this user's own, or one without a name."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(number)
    except KeyError:  # the group of a container's volume
        return number in (os.getegid(), *os.getgroups())
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return number == 0
    return set(group.gr_mem) <= {user, "root"} and (number == 0 or group.gr_name == user)
