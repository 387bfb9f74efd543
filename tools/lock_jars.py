"""Write the lock file of a node's jars: paths, sizes, SHA-256.

    python tools/lock_jars.py [FOLDER]

The jars are read from FOLDER, laid out as a Maven repository, or else from the repository that nodes
use. For another version of Ignite, first change `IGNITE_VERSION` in `ignitetf/node/jars.py` and the
versions below; those of H2 and Spring are in the POM of `ignite-parent`. A jar that is already
locked must keep its hash: a different one means that the file was replaced.
"""

import hashlib
import json
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ignitetf.node import jars
from ignitetf.node.jars import IGNITE_VERSION, Artifact, repository_url

LOCK = Path(jars.__file__).with_name(f"ignite-{IGNITE_VERSION}.lock.json")
SPRING_VERSION = "5.3.39"
# Only those dependencies of Ignite that a node with SQL and Spring XML needs.
COORDINATES = (
    "com.h2database:h2:1.4.197",
    "javax.cache:cache-api:1.0.0",
    *(
        f"org.apache.ignite:ignite-{name}:{IGNITE_VERSION}"
        for name in ("core", "indexing", "spring")
    ),
    *(
        f"org.springframework:spring-{name}:{SPRING_VERSION}"
        for name in ("aop", "beans", "context", "core", "expression", "jcl")
    ),
)


def artifact(coordinates: str, read: Callable[[str], bytes]) -> Artifact:
    """Return the lock entry of a jar; `read` returns its bytes for a path in a Maven repository."""
    group, name, version = coordinates.split(":")
    path = f"{group.replace('.', '/')}/{name}/{version}/{name}-{version}.jar"
    data = read(path)
    return Artifact(coordinates, path, len(data), hashlib.sha256(data).hexdigest())


def text_of(artifacts: list[Artifact]) -> str:
    """Return the text of the lock file for these jars."""
    content = {"ignite": IGNITE_VERSION, "artifacts": [asdict(jar) for jar in artifacts]}
    return json.dumps(content, indent=1) + "\n"


def check_same(artifacts: list[Artifact], locked: list[Artifact]) -> None:
    """Raise ValueError if a jar's bytes differ from those that were locked."""
    known = {jar.coord: jar.sha256 for jar in locked}
    for jar in artifacts:
        if known.get(jar.coord, jar.sha256) != jar.sha256:
            raise ValueError(f"{jar.coord} is not the jar that was locked: its SHA-256 differs")


def _from_repository(path: str) -> bytes:
    # The address was checked to be http or https when it was read.
    with urllib.request.urlopen(f"{repository_url()}/{path}", timeout=60) as answer:  # nosec B310
        data: bytes = answer.read()
        return data


def main(folder: str | None = None) -> None:
    """Write the lock file; raises ValueError if a locked jar changed."""
    read = _from_repository if folder is None else lambda path: Path(folder, path).read_bytes()
    made = [artifact(coordinates, read) for coordinates in COORDINATES]
    if LOCK.exists():
        check_same(made, jars.read_lock())
    LOCK.write_text(text_of(made), encoding="utf-8", newline="\n")
    print(LOCK)


if __name__ == "__main__":
    main(*sys.argv[1:2])
