"""Ignite's jars: listed with size and SHA-256 in a lock file, fetched once, verified at each start.

lock file -> a given folder | jars kept | Maven's own folder | repository -> **checked paths**

Files are kept in `IGNITETF_HOME/jars/VERSION`. A file gets its final name only after its hash was
verified, so the remains of an interrupted download cannot be mistaken for a jar.

The repository is the user's Maven mirror, otherwise the address that jgo knows:
`IGNITETF_MAVEN_MIRROR` > `~/.m2/settings.xml` > jgo's constant. A mirror need not be trusted, since
every file is verified against the hash in the lock file.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from ignitetf.errors import ConfigError, IgniteTFError, MissingExtra, NodeError
from ignitetf.trust import check_trust

__all__ = [
    "IGNITE_VERSION",
    "Artifact",
    "Progress",
    "ensure_jars",
    "local_repository",
    "read_lock",
    "repository_url",
]

IGNITE_VERSION = "2.17.0"
Progress = Callable[[str, int, int], None]  # label, bytes done, total bytes

_PARALLEL = 4
_ATTEMPTS = 3
_TIMEOUT_S = 30
_BLOCK_BYTES = 256 << 10


@dataclass(frozen=True)
class Artifact:
    """One jar: Maven coordinates, path in a repository, size and hash."""

    coord: str
    path: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the jar, without folders."""
        return self.path.rpartition("/")[2]


def read_lock() -> list[Artifact]:
    """Return the jars that a node consists of."""
    text = resources.files(__package__).joinpath(f"ignite-{IGNITE_VERSION}.lock.json").read_text()
    return [Artifact(**entry) for entry in json.loads(text)["artifacts"]]


def ensure_jars(
    home: Path, given: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Return the verified paths of all jars, copying or fetching missing ones first.

    Args:
        home: `IGNITETF_HOME`.
        given: Folder with the jars, for machines without a network; then nothing is fetched. None
            uses the folder in `IGNITETF_JARS`, if set.
        progress: Called as bytes arrive, from several threads.

    Raises:
        ConfigError: Another user could change the folder.
        NodeError: A jar is unavailable, or its hash differs from the lock file.
    """
    given = given or _folder_from_environment()
    folder = home / "jars" / IGNITE_VERSION
    folder.mkdir(parents=True, exist_ok=True)
    check_trust(folder, "the folder of jars")
    artifacts = read_lock()
    missing = [jar for jar in artifacts if not _matches(folder / jar.file_name, jar)]
    if given is not None:
        _copy_all(missing, given, folder)
    else:
        _fetch_all([jar for jar in missing if not _from_maven(jar, folder)], folder, progress)
    return [folder / jar.file_name for jar in artifacts]


def _folder_from_environment() -> Path | None:
    value = os.environ.get("IGNITETF_JARS")
    return Path(value).expanduser() if value else None


def _copy_all(artifacts: list[Artifact], source: Path, folder: Path) -> None:
    if artifacts and not source.is_dir():
        raise NodeError(f"--jars: no folder {str(source)!r}", hint="give the folder of the jars")
    wrong = []
    for jar in artifacts:
        for place in (source / jar.file_name, source / jar.path):
            if _matches(place, jar):
                _copy(place, jar, folder)
                break
        else:
            there = (source / jar.file_name).exists()
            wrong.append(f"{jar.file_name} ({'another hash' if there else 'missing'})")
    if wrong:
        raise NodeError(
            f"--jars {source}: {', '.join(wrong)}",
            hint=f"the folder needs the {len(read_lock())} jars of Ignite {IGNITE_VERSION} that the"
            " lock file in ignitetf/node names",
        )


def _from_maven(jar: Artifact, folder: Path) -> bool:
    place = local_repository() / jar.path
    if not _matches(place, jar):
        return False
    _copy(place, jar, folder)
    return True


def _copy(source: Path, jar: Artifact, folder: Path) -> None:
    temporary = _temporary(folder, jar)
    try:
        shutil.copyfile(source, temporary)
        if not _matches(temporary, jar):
            raise NodeError(f"{source} changed while it was copied", hint="try again")
        temporary.replace(folder / jar.file_name)
    finally:
        temporary.unlink(missing_ok=True)


def _matches(path: Path, jar: Artifact) -> bool:
    try:
        if path.stat().st_size != jar.size:
            return False
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
    except OSError:
        return False
    return digest.hexdigest() == jar.sha256


def _temporary(folder: Path, jar: Artifact) -> Path:
    return folder / f".{jar.file_name}.{os.getpid()}.{threading.get_ident()}.part"


class _Fetch:
    """State shared by the threads of one download."""

    def __init__(self, url: str, total: int, progress: Progress | None) -> None:
        self.url = url
        self.cancelled = threading.Event()
        self._label = f"fetching Apache Ignite {IGNITE_VERSION}"
        self._total = total
        self._done = 0
        self._lock = threading.Lock()
        self._progress = progress

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress:
                self._progress(self._label, self._done, self._total)


def _fetch_all(artifacts: list[Artifact], folder: Path, progress: Progress | None) -> None:
    if not artifacts:
        return
    _sweep(folder)
    fetch = _Fetch(repository_url(), sum(jar.size for jar in artifacts), progress)
    fetch.advance(0)
    largest_first = sorted(artifacts, key=lambda jar: -jar.size)
    with ThreadPoolExecutor(_PARALLEL, "ignitetf-jars") as pool:
        futures = [pool.submit(_fetch_one, jar, folder, fetch) for jar in largest_first]
        try:
            for future in futures:
                future.result()
        except BaseException:
            fetch.cancelled.set()
            for future in futures:
                future.cancel()
            raise


def _fetch_one(jar: Artifact, folder: Path, fetch: _Fetch) -> None:
    host = urlsplit(fetch.url).hostname
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _download(jar, folder, fetch)
            return
        except urllib.error.HTTPError as error:
            reason, again = f"HTTP {error.code} {error.reason}", error.code >= 500
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", None) or error
            reason, again = f"{type(cause).__name__}: {cause}", True
        if not again or attempt == _ATTEMPTS or fetch.cancelled.wait(0.5 * 2**attempt):
            raise NodeError(
                f"{jar.file_name} could not be fetched from {host}: {reason}",
                hint="check the network, set IGNITETF_MAVEN_MIRROR, or give --jars DIR",
            )


def _download(jar: Artifact, folder: Path, fetch: _Fetch) -> None:
    temporary = _temporary(folder, jar)
    received = 0
    try:
        # The address was verified to be http or https when it was read.
        request = urllib.request.Request(f"{fetch.url}/{jar.path}", headers=_HEADERS)
        with (
            urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,  # nosec B310
            temporary.open("wb") as file,
        ):
            received = _pump(answer, file, jar, fetch)
        if not _matches(temporary, jar):
            raise NodeError(
                f"{jar.file_name} from {urlsplit(fetch.url).hostname} is damaged or was replaced:"
                " its SHA-256 is not that of the lock file",
                hint="try again, or another IGNITETF_MAVEN_MIRROR",
            )
        temporary.replace(folder / jar.file_name)
    except BaseException:
        fetch.advance(-received)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _pump(answer: BinaryIO, file: BinaryIO, jar: Artifact, fetch: _Fetch) -> int:
    received = 0
    while block := answer.read(_BLOCK_BYTES):
        if fetch.cancelled.is_set():
            raise _Cancelled("cancelled")
        received += len(block)
        if received > jar.size:  # a login page or an endless answer instead of the jar
            break
        file.write(block)
        fetch.advance(len(block))
    return received


class _Cancelled(IgniteTFError):
    """Another file failed or the user interrupted, so this download is no longer needed."""


def _sweep(folder: Path) -> None:
    """Remove the remains of killed downloads."""
    for path in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 3600:
                path.unlink()


_HEADERS = {"User-Agent": "ignitetf"}


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
            "the address of the jar repository is unknown: jgo is not installed",
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
            hint="write https://HOST/PATH, the address of the folder of all groups",
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
