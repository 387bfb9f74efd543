"""Generate the Spring XML of a node, for the embedded node and for `docker/`.

options -> **Spring XML** -> JVM

`spring_xml` is pure: equal options produce equal text; it reads, writes and looks up nothing.

Partition counts. A thin client cannot set one, so the XML contains cache templates `pN*` for
N = 1, 2, 4 ... 1024 and for each requested N, all with partitionLossPolicy READ_WRITE_SAFE. The
following was found by experiment on Ignite 2.17.0, with the templates in ascending and in
descending order:

- A cache created **by name** (ops 1051, 1052) uses the template with the longest prefix that its
  name begins with: `p16-x`, `p16X` and `p16` get 16 partitions despite `p1*`, `p1-x` gets 1. Case
  matters: `P16X` matches none (1024 partitions, loss policy IGNORE).
- The trap is a count without a template: `p15-x` and `template=p15` silently use `p1*`, `p10240`
  uses `p1024*`; `p3-x` uses the default, and `template=p3` is refused ("Cache doesn't exist"). So
  read the count from SYS.CACHES (`Client.partition_count`) after creating a cache.
- A cache created **with a configuration** (ops 1053, 1054) uses no template, whatever its name: it
  has 1024 partitions. This way can set backups, atomicity and partition loss policy.
- A cache of any name gets N partitions through SQL: `CREATE TABLE T (...) WITH "template=pN,
  CACHE_NAME=MNIST_TRAIN,KEY_TYPE=java.lang.Long,VALUE_TYPE=MNIST_TRAIN"`. The template's name is
  case-sensitive; everything after the count is ignored (`template=p16-x` works). `backups`,
  `atomicity` and `write_synchronization_mode` may appear in WITH beside the template and override
  it; `partition_loss_policy` may not ("Unsupported parameter"), so the template's value applies.
- Without a template, and with `template=partitioned`, a table's loss policy is IGNORE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ignitetf.errors import ConfigError
from ignitetf.node.guard import PROVIDER, guard_beans
from ignitetf.node.spring import Element, bean, document, entry, item, prop, text_of, value
from ignitetf.partitions import MAX_PARTITIONS
from ignitetf.settings import DATA_CENTER

__all__ = [
    "DEFAULT_PARTITION_COUNTS",
    "NodeConfig",
    "TlsStores",
    "spring_xml",
    "template_xml",
]

MIB: Final = 1 << 20
DEFAULT_PARTITION_COUNTS: Final = tuple(1 << power for power in range(11))
_TLS_FACTORY: Final = prop("sslContextFactory", ('ref bean="tlsFactory"', []))


@dataclass(frozen=True)
class TlsStores:
    """PKCS12 stores of a node with TLS; clients must present a certificate that `trust` accepts."""

    key_store: str
    key_password: str = field(repr=False)
    trust_store: str
    trust_password: str = field(repr=False)


@dataclass(frozen=True)
class NodeConfig:
    """Options of one node.

    Args:
        name: Instance name and consistent id; must be the same after a restart.
        work_directory: Folder of the node's files.
        client_port: Port for thin clients.
        discovery_port: Port on which nodes discover each other.
        communication_port: Port on which nodes communicate.
        discovery_addresses: `host:port` of every node of the cluster; empty for a single node.
        local_host: Address to bind to; None binds to all (containers, with the port kept private).
        region_bytes: Maximum size of the data held off the Java heap.
        persist: Whether data are kept on disk and survive a restart.
        partition_counts: Counts N that get a cache template `pN*`.
        tls: Stores for TLS with client certificates; None for plain connections.
        authentication: Whether clients must log in; needs `persist`.
        data_center: Where it stands, as the node attribute `data_center`; None for nowhere in
            particular.
    """

    name: str
    work_directory: str
    client_port: int = 10800
    discovery_port: int = 47500
    communication_port: int = 47100
    discovery_addresses: tuple[str, ...] = ()
    local_host: str | None = "127.0.0.1"
    region_bytes: int = 2 << 30
    persist: bool = False
    partition_counts: tuple[int, ...] = DEFAULT_PARTITION_COUNTS
    tls: TlsStores | None = None
    authentication: bool = False
    data_center: str | None = None


def spring_xml(config: NodeConfig) -> str:
    """Return the Spring XML of a node.

    Returns:
        A complete document; with TLS it contains the passwords of the stores, so keep it private.

    Raises:
        ConfigError: A value that Spring would evaluate, a bad partition count, or a login without
            persistence.
    """
    if config.authentication and not config.persist:
        raise ConfigError(
            "login needs a node that keeps its data on disk",
            hint="give --persist as well, or --secure, which includes it",
        )
    guard = [] if config.persist else guard_beans()
    tls = _tls_beans(config.tls) if config.tls else []
    return document([*guard, *tls, _ignite(config)])


def template_xml(partition_counts: Iterable[int]) -> str:
    """Return the XML that lets caches of somebody else's cluster choose their partition count.

    Returns:
        A `<property name="cacheConfiguration">` element for the `IgniteConfiguration` bean.
    """
    return text_of(_templates(partition_counts))


def _ignite(config: NodeConfig) -> Element:
    properties = [
        value("igniteInstanceName", config.name),
        value("consistentId", config.name),
        value("workDirectory", config.work_directory),
        *([value("localHost", config.local_host)] if config.local_host else []),
        *([_attributes(config.data_center)] if config.data_center else []),
        value("metricsLogFrequency", 0),
        value("peerClassLoadingEnabled", False),
        value("clusterStateOnStart", "ACTIVE"),
        # Without this the node opens a second, unauthenticated port (11211) for its old REST API.
        prop("connectorConfiguration", ("null", [])),
        *([] if config.persist else [PROVIDER]),
        _failure_handler(config),
        _discovery(config),
        prop(
            "communicationSpi",
            bean(
                "spi.communication.tcp.TcpCommunicationSpi",
                value("localPort", config.communication_port),
                value("localPortRange", 0),
                # The system's own sizes. Ignite's 32 KB are less than a packet over loopback, where
                # what members send each other then stands still, once in a while for minutes.
                value("socketReceiveBuffer", 0),
                value("socketSendBuffer", 0),
            ),
        ),
        _storage(config),
        _client_connector(config),
        _templates(config.partition_counts),
    ]
    if config.authentication:
        # All users can read the statement history, which would show passwords of users.
        no_history = bean("configuration.SqlConfiguration", value("sqlQueryHistorySize", 0))
        properties += [
            value("authenticationEnabled", True),
            prop("sqlConfiguration", no_history),
        ]
    if config.tls:
        properties.append(_TLS_FACTORY)
    return bean("configuration.IgniteConfiguration", *properties)


def _attributes(data_center: str) -> Element:
    """Return the attributes of a node by which clients find the copies near to them."""
    return prop("userAttributes", ("map", [entry(DATA_CENTER, data_center)]))


def _failure_handler(config: NodeConfig) -> Element:
    """Return a failure handler that keeps a node in memory running when a region is full.

    A full memory region is a CRITICAL_ERROR, on which Ignite's handler halts the JVM. In memory
    that loses all data, so the error is ignored there and only reaches the client. With
    persistence a restart loses nothing, so Ignite's own behaviour stays.
    """
    ignored = ["SYSTEM_WORKER_BLOCKED", "SYSTEM_CRITICAL_OPERATION_TIMEOUT"]
    if not config.persist:
        ignored.append("CRITICAL_ERROR")
    types = prop("ignoredFailureTypes", ("set", [item(name) for name in ignored]))
    return prop("failureHandler", bean("failure.StopNodeOrHaltFailureHandler", types))


def _discovery(config: NodeConfig) -> Element:
    own = f"{config.local_host or '127.0.0.1'}:{config.discovery_port}"
    addresses = config.discovery_addresses or (own,)
    finder = bean(
        "spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder",
        prop("addresses", ("list", [item(address) for address in addresses])),
    )
    return prop(
        "discoverySpi",
        bean(
            "spi.discovery.tcp.TcpDiscoverySpi",
            value("localPort", config.discovery_port),
            value("localPortRange", 0),
            value("joinTimeout", 30_000),
            prop("ipFinder", finder),
        ),
    )


def _storage(config: NodeConfig) -> Element:
    region = [
        value("name", "default"),
        value("initialSize", min(config.region_bytes, 64 * MIB)),
        value("maxSize", config.region_bytes),
        value("persistenceEnabled", config.persist),
    ]
    storage = [value("pageSize", 4096), value("metricsEnabled", True)]
    if config.persist:
        buffer = max(min(config.region_bytes // 4, 1 << 30), 64 * MIB)
        region.append(value("checkpointPageBufferSize", buffer))
        # Equal paths disable the archive: segments are not copied, and need far less space.
        log = "db/wal"
        storage += [
            value("walMode", "LOG_ONLY"),
            value("walSegmentSize", 64 * MIB),
            value("walPath", log),
            value("walArchivePath", log),
            value("maxWalArchiveSize", 512 * MIB),
        ]
    region_bean = bean("configuration.DataRegionConfiguration", *region)
    storage.append(prop("defaultDataRegionConfiguration", region_bean))
    return prop(
        "dataStorageConfiguration", bean("configuration.DataStorageConfiguration", *storage)
    )


def _client_connector(config: NodeConfig) -> Element:
    properties = [
        *([value("host", config.local_host)] if config.local_host else []),
        value("port", config.client_port),
        value("portRange", 0),
        value("jdbcEnabled", False),
        value("odbcEnabled", False),
        # Each connection keeps this much direct memory: with 1 MiB, 256 of them end the node.
        value("socketSendBufferSize", MIB // 4),
        value("socketReceiveBufferSize", MIB // 4),
    ]
    if config.tls:
        properties += [
            value("sslEnabled", True),
            value("sslClientAuth", True),
            value("useIgniteSslContextFactory", False),
            _TLS_FACTORY,
        ]
    return prop(
        "clientConnectorConfiguration",
        bean("configuration.ClientConnectorConfiguration", *properties),
    )


def _tls_beans(stores: TlsStores) -> list[Element]:
    """Return the beans behind `_TLS_FACTORY`: key stores, the TLS context made of them, its factory.

    SYS.CONFIGURATION shows every user the properties of Ignite's own SslContextFactory, with both
    passwords. So it is not part of the configuration: that has a factory without properties.
    """
    _, properties = bean(
        "ssl.SslContextFactory",
        value("keyStoreFilePath", stores.key_store),
        value("keyStorePassword", stores.key_password),
        value("keyStoreType", "PKCS12"),
        value("trustStoreFilePath", stores.trust_store),
        value("trustStorePassword", stores.trust_password),
        value("trustStoreType", "PKCS12"),
        value("protocol", "TLS"),
        prop("protocols", ("array", [item("TLSv1.2"), item("TLSv1.3")])),
    )
    return [
        ('bean id="tlsStores" class="org.apache.ignite.ssl.SslContextFactory"', properties),
        ('bean id="tlsContext" factory-bean="tlsStores" factory-method="create"', []),
        (
            'bean id="tlsFactory" class="javax.cache.configuration.FactoryBuilder$SingletonFactory"',
            [('constructor-arg ref="tlsContext"', [])],
        ),
    ]


def _templates(partition_counts: Iterable[int]) -> Element:
    counts = sorted(set(partition_counts))
    for count in counts:
        if not 1 <= count <= MAX_PARTITIONS:
            raise ConfigError(
                f"a cache cannot have {count} partitions, expected 1 to {MAX_PARTITIONS}",
                hint="give --template-partitions a number in that range",
            )
    return prop("cacheConfiguration", ("list", [_template(count) for count in counts]))


def _template(count: int) -> Element:
    affinity = bean(
        "cache.affinity.rendezvous.RendezvousAffinityFunction", value("partitions", count)
    )
    return bean(
        "configuration.CacheConfiguration",
        value("name", f"p{count}*"),
        # With Ignite's default, a lost partition silently reads as empty; this raises an error.
        value("partitionLossPolicy", "READ_WRITE_SAFE"),
        prop("affinity", affinity),
    )
