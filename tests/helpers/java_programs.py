"""Compile the Java programs of the tests, and run them with the node's jars.

The node's Java runtime has no compiler: `javac` is used if there is a JDK, else Eclipse's compiler,
a single jar from the repository that the node's jars come from.
"""

import hashlib
import os
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from helpers.needs import missing
from helpers.nodes import QUICK

COMPILER = "org/eclipse/jdt/ecj/3.44.0/ecj-3.44.0.jar"
COMPILER_SHA256 = "14c46ddc2e511c46c998da728f6a80f13a689c920f3832402f7ad150f6a6188d"
OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.time",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/jdk.internal.misc",
    "java.base/sun.nio.ch",
    "java.management/com.sun.jmx.mbeanserver",
    "java.sql/java.sql",
)


def java_command(source, home, folder, jars=None):
    """Compile a source file, with what it uses beside it, and return the command that runs it.

    With the jars of a node, or with those that are given.
    """
    from ignitetf.errors import NodeError
    from ignitetf.node.jars import ensure_jars
    from ignitetf.node.jvm import find_java

    try:
        runtime, jars = find_java(), jars or ensure_jars(home)
    except NodeError as error:
        missing(f"no Java or no jars: {error}")
    path = os.pathsep.join(map(str, jars))
    compiler = [found] if (found := shutil.which("javac")) else eclipse(runtime.path, folder)
    run(*compiler, "-source", "11", "-target", "11", "-encoding", "UTF-8", "-nowarn",
        "-cp", path, "-sourcepath", source.parent, "-d", folder, source)  # fmt: skip
    options = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
    if runtime.major >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    classes = f"{folder}{os.pathsep}{path}"
    return [str(runtime.path), *options, "-cp", classes, source.stem]


def eclipse(program, folder):
    """Return the command of Eclipse's compiler, which needs only a runtime."""
    return [program, QUICK, "-jar", jar(COMPILER, COMPILER_SHA256, folder)]


def jar(place, sha256, folder):
    """Put a jar into a folder: from Maven's own one, or else from the repository."""
    from ignitetf.node.jars import local_repository, repository_url

    kept = local_repository() / place
    try:
        if kept.is_file():
            content = kept.read_bytes()
        else:
            request = urllib.request.Request(
                f"{repository_url()}/{place}", headers={"User-Agent": "ignitetf"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
    except (OSError, urllib.error.URLError) as error:
        missing(f"{place} could not be fetched: {error}")
    assert hashlib.sha256(content).hexdigest() == sha256
    path = folder / place.rpartition("/")[2]
    path.write_bytes(content)
    return path


def secured(settings, folder):
    """Return the environment in which a program connects with these settings: their key stores."""
    if not settings.tls:
        return {}
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    word = secrets.token_hex(16)
    hidden = serialization.BestAvailableEncryption(word.encode())
    ca, own = (
        x509.load_pem_x509_certificate(Path(path).read_bytes())
        for path in (settings.ca, settings.cert)
    )
    password = settings.key_password and settings.key_password.encode()
    key = serialization.load_pem_private_key(Path(settings.key).read_bytes(), password)
    (folder / "key.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"client", key, own, [ca], hidden)
    )
    trust = pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(ca, b"ca")], hidden)
    (folder / "trust.p12").write_bytes(trust)
    login = {"TEST_USER": settings.username, "TEST_PASSWORD": settings.password}
    return {"TEST_STORES": str(folder), "TEST_STORES_PASSWORD": word, **login}


def run(*words, environment=None):
    """Run a command that must succeed, and return what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
