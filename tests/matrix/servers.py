"""Runs the checks on clusters of several versions of Ignite, and writes their table in the docs.

    PYTHONPATH=tests python tests/matrix/servers.py [--versions 2.8.1,2.17.0] [--write]

For each version a cluster of two plain nodes is started, one after the other: with persistence, a
login, TLS with client certificates, and caches that its configuration defines; none of our
templates. `--write` puts the table into `docs/versions.md`. The exit status is 1 if a check fails.
"""

import argparse
import datetime
import re
import secrets
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from checks import CHECKS, Cluster
from helpers.paths import ROOT
from helpers.plain_nodes import CURRENT, VERSIONS, plain_cluster

from ignitetf.errors import IgniteTFError
from ignitetf.home import ignitetf_home
from ignitetf.net.client import connect
from ignitetf.node.certificates import CertificateFiles, make_certificates
from ignitetf.settings import Settings

PROGRAM = ROOT / "tests" / "data" / "java" / "MatrixNode.java"
PAGE = ROOT / "docs" / "versions.md"
MATRIX = (*(version for version in VERSIONS if version != "2.10.0"), CURRENT)
HOLDS, NOT_RUN = "yes", "not run"
_BEGIN, _END = "<!-- matrix -->", "<!-- end of the matrix -->"


def run_version(version, home, folder, names=tuple(CHECKS)):
    """Run checks on a new cluster of a version; returns what each found: `yes`, a note, an error."""
    stores = folder / "stores"
    stores.mkdir()
    files, password = CertificateFiles(stores), secrets.token_hex(16)
    make_certificates(files, password, password)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATRIX_STORES", str(stores))
        patch.setenv("MATRIX_PASSWORD", password)
        with plain_cluster(
            home, folder, version, count=2, persistent=True, program=PROGRAM
        ) as cluster:
            settings = Settings(
                addresses=tuple(cluster.addresses),
                username="ignite",
                password="ignite",
                tls=True,
                ca=str(files.ca),
                cert=str(files.client_cert),
                key=str(files.client_key),
            )
            with connect(settings=settings) as client:
                return run_checks(Cluster(client, folder, version), names)


def run_checks(cluster, names=tuple(CHECKS)):
    """Run checks on a cluster; what the failed ones found begins with `no: `."""
    found = {}
    for name in names:
        began = time.monotonic()
        try:
            found[name] = CHECKS[name](cluster) or HOLDS
        except Exception as error:
            traceback.print_exc()
            found[name] = f"no: {type(error).__name__}: {error}".splitlines()[0]
        print(f"{cluster.version} {time.monotonic() - began:5.1f} s  {name}: {found[name]}")
        sys.stdout.flush()
    return found


def table(results):
    """Return the table of the results, {version: {check: found}}, in Markdown."""
    versions = list(results)
    notes = {}
    lines = [f"| check | {' | '.join(versions)} |", f"| --- |{' --- |' * len(versions)}"]
    for name in CHECKS:
        cells = [_cell(results[version].get(name, NOT_RUN), notes) for version in versions]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    held = [sum(not f.startswith("no: ") for f in results[v].values()) for v in versions]
    lines.append(f"| **hold** | {' | '.join(f'{count} of {len(CHECKS)}' for count in held)} |")
    return "\n".join([*lines, "", *(f"{number}. {text}" for text, number in notes.items())])


def _cell(found, notes):
    if found in (HOLDS, NOT_RUN):
        return found
    number = notes.setdefault(found.removeprefix("no: "), len(notes) + 1)
    return f"no ({number})" if found.startswith("no: ") else f"yes ({number})"


def write(results, page=PAGE):
    """Replace the table of the page, with the date of this run."""
    text = page.read_text("utf-8")
    day = datetime.datetime.now(datetime.UTC).date()
    new = (
        f"{_BEGIN}\nRun on {day}; a number refers to the list below it.\n\n{table(results)}\n{_END}"
    )
    pattern = f"{re.escape(_BEGIN)}.*{re.escape(_END)}"
    page.write_text(re.sub(pattern, lambda _: new, text, flags=re.DOTALL), "utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", default=",".join(MATRIX))
    parser.add_argument("--checks", help="only checks whose name has this pattern", default="")
    parser.add_argument("--write", action="store_true", help="write the table in docs/versions.md")
    given = parser.parse_args()
    names = tuple(name for name in CHECKS if re.search(given.checks, name))
    results = {}
    for version in given.versions.split(","):
        with tempfile.TemporaryDirectory(prefix="ignitetf-matrix-") as folder:
            try:
                results[version] = run_version(version, ignitetf_home(), Path(folder), names)
            except (IgniteTFError, AssertionError) as error:
                print(error)
                results[version] = dict.fromkeys(names, "no: the cluster did not start")
        if given.write:
            write(results)
    print(table(results))
    failed = [f for found in results.values() for f in found.values() if f.startswith("no: ")]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
