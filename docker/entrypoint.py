"""Entry point of the containers.

    node CONFIG     a node with this Spring XML, replacing this process
    listening       exit 0 if a node answers the handshake (an inactive one does, too)
    secure          a node with TLS, client certificates and login; first creates what it needs
    establish       create the users of the secured node, and print how clients connect
    activate N      wait for N members, then activate their cluster and send it a query
    mnist [...]     `ignitetf load mnist`, unless it is loaded, and the folder igfs:///checkpoints
    anything else   an `ignitetf` command

The node runs with the Java, the jars (checked by hash) and the options of the embedded node. Its
log goes to stderr, where people look for a container's log.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

NODE_DIRECTORY = "/var/lib/ignite"
SECURED = "secured"
PORTS = (10800, 47500, 47100)
POLL_S = 1.0
ESTABLISH_S = 120.0
CONSOLE_LOG = (
    "handlers=java.util.logging.ConsoleHandler\n"
    ".level=INFO\n"
    "java.util.logging.ConsoleHandler.level=INFO\n"
    "java.util.logging.ConsoleHandler.formatter=org.apache.ignite.logger.java.JavaLoggerFormatter\n"
)
IGNITETF = [sys.executable, "-c", "from ignitetf.cli.main import main; main()"]


def node(config: Path, directory: Path, heap_mib: int) -> None:
    """Replace this process with the node's JVM, so that the JVM gets the container's signals."""
    from ignitetf.home import ignitetf_home
    from ignitetf.node.jars import ensure_jars
    from ignitetf.node.jvm import argument_file, clean_environment, find_java

    for folder in ("log", "tmp", "work"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    if config != directory / "node.xml":
        shutil.copyfile(config, directory / "node.xml")
    (directory / "logging.properties").write_text(CONSOLE_LOG, encoding="utf-8")
    java = find_java()
    arguments = argument_file(java, ensure_jars(ignitetf_home()), directory, heap_mib, None)
    (directory / "jvm.args").write_text(arguments, encoding="utf-8")
    os.chdir(directory)
    os.execve(java.path, [str(java.path), "@jvm.args"], clean_environment())


def secure(directory: Path, heap_mib: int, host: str | None, ports: tuple[int, int, int]) -> None:
    """Become a secured node; its certificates and passwords are made once, in the volume."""
    from ignitetf.node.config import NodeConfig, spring_xml
    from ignitetf.node.security import Security

    directory.mkdir(parents=True, exist_ok=True)
    security = Security(SECURED, directory)
    security.prepare()
    client_port, discovery_port, communication_port = ports
    config = NodeConfig(
        SECURED,
        str(directory / "work"),
        client_port=client_port,
        discovery_port=discovery_port,
        communication_port=communication_port,
        local_host=host,
        persist=True,
        tls=security.stores,
        authentication=True,
    )
    # The file holds the passwords of the key stores.
    path = directory / "node.xml"
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(spring_xml(config), encoding="utf-8")
    node(path, directory, heap_mib)


def establish(directory: Path, address: str) -> None:
    """Activate the secured cluster and create its users; safe to repeat."""
    from ignitetf.errors import IgniteTFError
    from ignitetf.local.process import write_private
    from ignitetf.net.channel import Channel
    from ignitetf.node.security import Security
    from ignitetf.wire.codes import OpCode

    security = Security(SECURED, directory)
    security.prepare()
    deadline = time.monotonic() + ESTABLISH_S
    while True:
        try:
            with Channel(address, security.admin_settings([address])) as channel:
                if not channel.call(OpCode.CLUSTER_GET_STATE)[0]:
                    channel.call(OpCode.CLUSTER_CHANGE_STATE, b"\x01", timeout_s=ESTABLISH_S)
            security.establish([address])
            break
        except IgniteTFError as error:
            if time.monotonic() > deadline:
                raise
            print(error, file=sys.stderr, flush=True)
            time.sleep(POLL_S)
    files = security.files
    settings = security.settings([address])
    password_file = directory / "secure" / "password"
    write_private(password_file, settings.password or "")
    print(f"--username {settings.username} --password-file {password_file}")
    print(f"--ca {files.ca} --cert {files.client_cert} --key {files.client_key}")


def activate(members: int, timeout_s: float) -> None:
    """Activate a new persistent cluster once all members have joined.

    These become the members that hold its data: one that joins later would hold none.
    """
    from ignitetf.errors import IgniteTFError
    from ignitetf.net.channel import Channel
    from ignitetf.net.client import Client
    from ignitetf.settings import Settings
    from ignitetf.wire.codes import OpCode

    settings = Settings.resolve()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with Client(settings) as client:
                joined = len(client.nodes())
            if joined >= members:
                break
            state = f"{joined} of {members} members joined"
        except IgniteTFError as error:
            state = str(error)
        if time.monotonic() > deadline:
            raise SystemExit(f"not active after {timeout_s:.0f} s: {state}")
        print(state, file=sys.stderr, flush=True)
        time.sleep(POLL_S)
    with Channel(settings.addresses[0], settings) as channel:
        if not channel.call(OpCode.CLUSTER_GET_STATE)[0]:
            limit = max(1.0, deadline - time.monotonic())
            channel.call(OpCode.CLUSTER_CHANGE_STATE, b"\x01", timeout_s=limit)
    with Client(settings) as client:
        found = client.sql("SELECT COUNT(*) FROM SYS.NODES").fetchall()
    print(f"active, {found[0][0]} members")


def listening() -> None:
    """Connect once; raises what the client raises."""
    from ignitetf.net.client import Client
    from ignitetf.settings import Settings

    Client(Settings.resolve()).close()


def mnist(options: list[str]) -> None:
    """Load MNIST unless it is complete, and create the folder for checkpoints."""
    for command in (
        ["load", "mnist", "--partitions", "8", "--if-exists", "resume", *options],
        ["fs", "mkdir", "--parents", "igfs:///checkpoints"],
    ):
        subprocess.run([*IGNITETF, *command], check=True)


def main(words: list[str]) -> None:
    """Run what the container was asked to run."""
    parser = argparse.ArgumentParser(prog="entrypoint", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("node")
    start.add_argument("config", type=Path)
    start.add_argument("--directory", type=Path, default=Path(NODE_DIRECTORY))
    start.add_argument("--heap-mib", type=int, default=1024)
    secured = commands.add_parser("secure")
    secured.add_argument("--directory", type=Path, default=Path(NODE_DIRECTORY))
    secured.add_argument("--heap-mib", type=int, default=1024)
    secured.add_argument("--host", help="Address to bind to [default: all of the container].")
    secured.add_argument("--ports", type=int, nargs=3, default=PORTS)
    users = commands.add_parser("establish")
    users.add_argument("--directory", type=Path, default=Path(NODE_DIRECTORY))
    users.add_argument("--address", default="127.0.0.1:10800")
    commands.add_parser("listening")
    active = commands.add_parser("activate")
    active.add_argument("members", type=int)
    active.add_argument("--timeout", type=float, default=120)
    if words[:1] == ["mnist"]:
        mnist(words[1:])
        return
    if words and words[0] not in (*commands.choices, "-h", "--help"):
        os.execv(sys.executable, [*IGNITETF, *words])
    given = parser.parse_args(words)
    if given.command == "node":
        node(given.config.resolve(), given.directory.resolve(), given.heap_mib)
    elif given.command == "secure":
        secure(given.directory.resolve(), given.heap_mib, given.host, tuple(given.ports))
    elif given.command == "establish":
        establish(given.directory.resolve(), given.address)
    elif given.command == "activate":
        activate(given.members, given.timeout)
    else:
        listening()


if __name__ == "__main__":
    from ignitetf.errors import IgniteTFError

    try:
        main(sys.argv[1:])
    except IgniteTFError as error:
        raise SystemExit(f"error: {error}") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from error
