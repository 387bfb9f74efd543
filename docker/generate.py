"""Write `docker/config/*.xml`, the nodes of the compose files, with the generator for all nodes.

    python docker/generate.py

The files are committed; a unit test compares them with the output of this script.
"""

from pathlib import Path

from ignitetf.node.config import NodeConfig, spring_xml

CONFIG = Path(__file__).resolve().parent / "config"
WORK_DIRECTORY = "/var/lib/ignite/work"
CLUSTER = ("node-1", "node-2", "node-3")
DISCOVERY_PORT = 47500
GIB = 1 << 30


def configurations() -> dict[str, NodeConfig]:
    """Return the configuration of each file by name.

    `local_host` is None because a container has a single network.
    Ports are reachable only from the compose network, except those that a compose file publishes.
    """
    found = {"node.xml": NodeConfig("ignite", WORK_DIRECTORY, local_host=None)}
    pods = {f"k8s-{i}": f"ignite-{i}.ignite" for i in range(len(CLUSTER))}
    for name, members in [(n, CLUSTER) for n in CLUSTER] + [
        (n, tuple(pods.values())) for n in pods
    ]:
        addresses = tuple(f"{member}:{DISCOVERY_PORT}" for member in members)
        found[f"{name}.xml"] = NodeConfig(
            name,
            WORK_DIRECTORY,
            discovery_port=DISCOVERY_PORT,
            discovery_addresses=addresses,
            local_host=None,
            region_bytes=GIB,
            persist=True,
        )
    return found


if __name__ == "__main__":
    CONFIG.mkdir(exist_ok=True)
    for file_name, config in configurations().items():
        (CONFIG / file_name).write_text(spring_xml(config), encoding="utf-8", newline="\n")
        print(CONFIG / file_name)
