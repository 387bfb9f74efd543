"""Clusters as Ignite sets them up: no templates, guard or settings of ours; several versions.

Each member runs `tests/data/java/PlainNode.java` with the jars of its version.
"""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.java_programs import jar, java_command
from helpers.nodes import QUICK
from helpers.paths import ROOT
from helpers.ports import lasting_port

SOURCE = ROOT / "tests" / "data" / "java" / "PlainNode.java"
API = (
    "javax/cache/cache-api/1.0.0/cache-api-1.0.0.jar",
    "d2836213144722e2eb1d7461f6e2ea3349d6fbbf9cd5f345c7133bc29bd39ca1",
)
H2 = (
    "com/h2database/h2/1.4.197/h2-1.4.197.jar",
    "37f5216e14af2772930dff9b8734353f0a80e89ba3f33e065441de6537c5e842",
)
# SHA-256 of ignite-core and ignite-indexing.
VERSIONS = {
    "2.8.1": (
        "110828c07c7b6e8b96ceea2980221c61531f6331efee0af3ab19b0580fca2a1a",
        "c0f713cd09da0cd59adde3c8c2d2f7af4e8199c892fed9622b48cc9b0c373f6d",
    ),
    "2.10.0": (
        "8ce6b8e4fb8946b46f2e7fb0e269c184ccc27cdfe8b465c18ba32cb8abc98648",
        "1943122baa5b05d9246132a3f966985988638e43103ef153520ce79547a0d696",
    ),
    "2.11.1": (
        "9a0d92808d6905dc1b6bd68465d8b9f5759999fe3f95dc17b9cb97f46db4d8ca",
        "31d5a0aef936545ccefc12b4074ec2706058ea0722f6e67c13a0de8579c591b8",
    ),
    "2.13.0": (
        "916eb5d38a2919926d3776b2ee660b85be74e3fa6c46fd2485c5bfd5fd20b985",
        "42e7ff0dc057ad04366309bfba25dca4a203fe65d1186c4188b53b776afc5115",
    ),
    "2.14.0": (
        "4c5608137741c0f0653d1cad9fd13a1fee08ae1c3f1a4d0618dcfe2f318cbf2d",
        "c77d1493b35664449014a4795f46c88efecdedcfa6505942018eb9d5b962e8b6",
    ),
    "2.15.0": (
        "df0e297dc514fe5b238caa895fc13d4aa277f471a6bacd623831a2b80a8b3be2",
        "087ea5a3c18cf1c2e3fc3ae319591b6c0374da8eec737300212835377aebd893",
    ),
    "2.16.0": (
        "9d07027d0998f5f1e3887a91cf7d11635f201b5e19b7992052995b3a7ac5086b",
        "5d8614dbbdca9af2d5b8d959851f8b0fca28cf2848052ef3a9ef6c8b7820d731",
    ),
}
CURRENT = "2.17.0"


def version_jars(version, home, folder):
    """Return the jars of a node of a version, with its SQL engine."""
    if version == CURRENT:
        from ignitetf.node.jars import ensure_jars

        return ensure_jars(home)
    group = "org/apache/ignite"
    names = zip(("ignite-core", "ignite-indexing"), VERSIONS[version], strict=True)
    pinned = [(f"{group}/{n}/{version}/{n}-{version}.jar", sha256) for n, sha256 in names]
    return [jar(place, sha256, folder) for place, sha256 in (*pinned, API, H2)]


class PlainCluster:
    """A running cluster.

    Attributes:
        addresses: `HOST:PORT` of each member.
    """

    def __init__(self, words, folder, count, zones, persistent):
        ports = [lasting_port(3) for _ in range(count)]
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self._members = []
        self._commands = []
        try:
            for number, port in enumerate(ports):
                work = Path(folder) / f"member-{number}"
                work.mkdir()
                zone = f"-Duser.timezone={zones[number % len(zones)]}"
                others = [str(other) for other in ports if other != port]
                command = [words[0], "-Xmx512m", QUICK, zone, *words[1:]]
                command += [str(work), str(persistent).lower(), str(port), *others]
                self._commands.append((command, work))
                self._members.append(self._start(command, work))
        except BaseException:
            self.stop()
            raise

    def _start(self, command, work):
        log = (work / "log").open("wb")
        member = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        log.close()
        ready = next((line for line in member.stdout if line.startswith(b"READY")), b"")
        if not ready:
            member.kill()
            member.wait(20)
            raise AssertionError((work / "log").read_text())
        return member

    def kill(self, number):
        """End a member at once."""
        self._members[number].kill()
        self._members[number].wait(20)

    def restart(self, number):
        """Kill a member, and let it join again."""
        self.kill(number)
        self._members[number].stdout.close()
        self._members[number] = self._start(*self._commands[number])

    def stop(self):
        """End all members."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.stdin.close()
        for member in self._members:
            try:
                member.wait(20)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait(20)
            member.stdout.close()


@contextlib.contextmanager
def plain_cluster(
    home, folder, version=CURRENT, *, count=1, zones=("UTC",), persistent=False, program=SOURCE
):
    """Start `count` members of a version, each with its time zone; they end with the block.

    Each member runs `program`, which has the arguments of `PlainNode.java`.

    A persistent cluster has to be activated by the test. Versions before 2.17 need a Java of 11 to
    21 on the PATH; without one the test is skipped.
    """
    with pytest.MonkeyPatch.context() as patch:
        if version != CURRENT:
            patch.setenv("IGNITETF_JAVA", _older_java())
        words = java_command(program, home, folder, version_jars(version, home, folder))
    cluster = PlainCluster(words, folder, count, zones, persistent)
    try:
        yield cluster
    finally:
        cluster.stop()


def _older_java():
    found = shutil.which("java")
    if found is None:
        pytest.skip("no java on the PATH: older versions of Ignite do not run on the wheel's")
    text = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30).stderr
    major = int(re.search(r'version "(\d+)', text)[1])
    if not 11 <= major <= 21:
        pytest.skip(f"Java {major} on the PATH: older versions of Ignite need 11 to 21")
    return os.path.realpath(found)
