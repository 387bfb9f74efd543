"""Where jars are downloaded from: the user's Maven mirror, or else the address that jgo knows.

`IGNITETF_MAVEN_MIRROR` > `~/.m2/settings.xml` > jgo's constant. A mirror need not be trusted, since
every file is checked against the hash in the lock file.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from ignitetf.errors import ConfigError, MissingExtra

__all__ = ["local_repository", "repository_url"]

_COVERS_CENTRAL = {"*", "central", "external:*"}


def repository_url() -> str:
    """Return the address of the repository, without a trailing slash.

    Raises:
        ConfigError: The mirror's address is neither http nor https.
        MissingExtra: No mirror is set and the `node` extra is not installed.
    """
    if mirror := os.environ.get("IGNITETF_MAVEN_MIRROR"):
        return _checked(mirror, "IGNITETF_MAVEN_MIRROR")
    settings = Path.home() / ".m2" / "settings.xml"
    if mirror := _mirror_of(settings):
        return _checked(mirror, str(settings))
    try:
        from jgo.constants import MAVEN_CENTRAL_URL
    except ImportError as error:
        raise MissingExtra(
            "the address of the jar repository is not known: jgo is not installed",
            hint="pip install 'ignitetf[node]', set IGNITETF_MAVEN_MIRROR, or give --jars DIR",
        ) from error
    return str(MAVEN_CENTRAL_URL).rstrip("/")


def local_repository() -> Path:
    """Return the folder in which Maven itself keeps its downloads."""
    return Path.home() / ".m2" / "repository"


def _checked(url: str, origin: str) -> str:
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{origin}: the mirror is not an http or https address",
            hint="write https://HOST/PATH, the address under which group folders stand",
        )
    return url.strip().rstrip("/")


def _mirror_of(settings: Path) -> str | None:
    """Return the first mirror of the central repository in Maven's settings."""
    if not settings.is_file():
        return None
    import defusedxml
    import defusedxml.ElementTree

    try:
        root = defusedxml.ElementTree.parse(settings).getroot()
    except (OSError, ValueError, defusedxml.ElementTree.ParseError) as error:
        raise ConfigError(
            f"{settings}: cannot be read as XML",
            hint="repair it, or set IGNITETF_MAVEN_MIRROR",
        ) from error
    for mirror in root.iterfind(".//{*}mirror"):
        texts = {tag: (mirror.findtext(f"{{*}}{tag}") or "").strip() for tag in _TAGS}
        covered = {part.strip() for part in texts["mirrorOf"].split(",")}
        if texts["blocked"] == "true" or "!central" in covered or not texts["url"]:
            continue
        if covered & _COVERS_CENTRAL:
            return texts["url"]
    return None


_TAGS = ("mirrorOf", "blocked", "url")
