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
- A count without a template is a trap: `p15-x` and `template=p15` silently use `p1*`, `p10240`
  uses `p1024*`; `p3-x` uses the default, and `template=p3` is refused ("Cache doesn't exist"). So
  read the count from SYS.CACHES (`Client.partition_count`) after creating a cache.
- A cache created **with a configuration** (ops 1053, 1054) uses no template, whatever its name: it
  has 1024 partitions. This way can set backups, atomicity and partition loss policy.
- A cache of any name gets N partitions through SQL: `CREATE TABLE T (...) WITH "template=pN,
  CACHE_NAME=MNIST_TRAIN,KEY_TYPE=java.lang.Long,VALUE_TYPE=MNIST_TRAIN"`. The template's name is
  case-sensitive; everything after the count is ignored (`template=p16-x` works). `backups`,
  `atomicity` and `write_synchronization_mode` may appear in WITH together with the template and
  override it; `partition_loss_policy` may not ("Unsupported parameter"), so the template's value
  applies.
- Without a template, and with `template=partitioned`, a table's loss policy is IGNORE.

Spring evaluates `${...}` and `#{...}` in every value, so values must not contain them.

The memory guard makes a node refuse a cache that does not fit into its memory. Each partition of a
cache takes two pages of the data region as soon as the cache is created, before it has any rows
(measured on 2.17.0: 2,050 pages, 8 MB, for 1,024 partitions, 2,052 for a SQL table). Inserting rows
leaves some 350 pages free (`ensureFreeSpaceForInsert`). If partitions find no free page, the error
is raised in the thread that assigns partitions, and Ignite halts the node, which loses all its data
in memory.

So the guard checks first. Ignite calls `PluginProvider.createCacheProvider` when it begins to
create a cache, for any requester. An error there rolls the cache back on all nodes and is returned
to the client ("Failed to complete exchange process"). The provider is built with Spring alone, by
method injection: `lookup-method` lets a bean answer a method, and passes the method's arguments to
the bean's constructor or factory method. `memory guard check` is the rule below, an expression in
Spring's language whose root is the context of the new cache; all other methods do nothing.

Two cases remain. Ignite does not call the guard for partitions that arrive because another node
left the cluster, nor for index pages of a table that is already full. Building such an index fails
and leaves the data intact, but the pages it took, including those 350, are freed only with the
table. Dropping the table frees them along with the rows. If removing the rows finds no free page
first, the drop ends the node (seen in 2 of 24 drops). Removing rows before the drop frees the pages
it needs.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ignitetf.errors import ConfigError
from ignitetf.partitions import MAX_PARTITIONS, PAGES_PER_PARTITION, RESERVE_PAGES, RESERVE_PART
from ignitetf.settings import DATA_CENTER

__all__ = [
    "DEFAULT_PARTITION_COUNTS",
    "NodeConfig",
    "TlsStores",
    "bean",
    "document",
    "entry",
    "item",
    "literal",
    "masked",
    "spring_xml",
    "template_xml",
    "text_of",
    "value",
]

# (opening tag without brackets, children)
Element = tuple[str, list["Element"]]

_HEAD: Final = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<beans xmlns="http://www.springframework.org/schema/beans"\n'
    '       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
    '       xsi:schemaLocation="http://www.springframework.org/schema/beans\n'
    '                           http://www.springframework.org/schema/beans/spring-beans.xsd">\n'
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_PASSWORD: Final = re.compile(r'(name="[A-Za-z]*[Pp]assword" value=")[^"]*(")')
_TEXT: Final = "#"  # marks an element that is text inside <value>


def document(beans: Iterable[Element]) -> str:
    """Return a complete document with these beans."""
    lines = [line for each in beans for line in _indented(each, 1)]
    return _HEAD + "\n".join(lines) + "\n</beans>\n"


def text_of(element: Element) -> str:
    """Return the text of one element, for insertion into a document."""
    return "\n".join(_indented(element, 0))


def masked(xml: str) -> str:
    """Return a document with every password replaced by `***`."""
    return _PASSWORD.sub(r"\1***\2", xml)


def bean(name: str, *children: Element) -> Element:
    """Return a bean of Apache Ignite's class `name`."""
    return (f'bean class="org.apache.ignite.{name}"', list(children))


def _prop(name: str, child: Element) -> Element:
    """Return a property whose value is an element."""
    return (f'property name="{name}"', [child])


def value(name: str, value: str | int | bool) -> Element:
    """Return a property whose value is text, a number or a boolean."""
    return (f'property name="{name}" value="{literal(value)}"', [])


def item(value: str) -> Element:
    """Return a text item of a list."""
    return (_TEXT + literal(value), [])


def entry(key: str, value: str) -> Element:
    """Return an entry of a map."""
    return (f'entry key="{literal(key)}" value="{literal(value)}"', [])


def literal(value: str | int | bool) -> str:
    """Return a value escaped for quotes; raises ConfigError if Spring would evaluate it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if "${" in text or "#{" in text or _CONTROL.search(text):
        raise ConfigError(
            f"a name or path of a node may not contain '${{', '#{{' or control characters: {text!r}",
            hint="choose another name, or another folder with IGNITETF_HOME",
        )
    return html.escape(text, quote=True)


def _indented(element: Element, depth: int) -> Iterator[str]:
    tag, children = element
    space = "  " * depth
    if tag.startswith(_TEXT):
        yield f"{space}<value>{tag[1:]}</value>"
    elif not children:
        yield f"{space}<{tag}/>"
    else:
        yield f"{space}<{tag}>"
        for child in children:
            yield from _indented(child, depth + 1)
        yield f"{space}</{tag.split(' ', 1)[0]}>"


_NAME: Final = "memory guard"
_PARTITIONS: Final = "#root.igniteCacheConfiguration().affinity.partitions()"
_REGION: Final = (
    "grid().context().cache().context().database()"
    ".dataRegion(igniteCacheConfiguration().dataRegionName)"
)
_TOTAL: Final = "(config().maxSize / pageMemory().systemPageSize())"
_ENOUGH: Final = (
    f"{_TOTAL} - metrics().totalUsedPages >= {PAGES_PER_PARTITION} * {_PARTITIONS}"
    f" + T(Math).max({RESERVE_PAGES}L, {_TOTAL} / {RESERVE_PART})"
)
_FAILURE: Final = (
    "new org.apache.ignite.internal.util.future.GridFinishedFuture("
    "new org.apache.ignite.internal.mem.IgniteOutOfMemoryException("
    f"'Out of memory in data region: too little is left for the ' + {_PARTITIONS} +"
    " ' partitions of the new cache ' + igniteCacheConfiguration().name)).get()"
)
# "The first of these regions with enough room, or fail". Success must return null.
_RULE: Final = f"{{{_REGION}}}.^[{_ENOUGH}] != null ? null : {_FAILURE}"

# Methods of the provider, and the bean that answers each.
_METHODS: Final = {
    "name": "text",
    "version": "text",
    "copyright": "text",
    "plugin": "plugin",
    "initExtensions": "two",
    "createComponent": "two",
    "createCacheProvider": "check",
    "start": "one",
    "stop": "one",
    "onIgniteStart": "text",
    "onIgniteStop": "one",
    "provideDiscoveryData": "one",
    "receiveDiscoveryData": "two",
    "validateNewNode": "one",
}
_PROVIDER: Final = _prop("pluginProviders", ("list", [(f'ref bean="{_NAME}"', [])]))


def _guard_beans() -> list[Element]:
    """Return the beans of the guard; `_PROVIDER` passes them to the node."""
    spring = "org.springframework"
    nothing = 'factory-bean="memory guard nothing" factory-method'
    lookups: list[Element] = [
        (f'lookup-method name="{method}" bean="{_NAME} {answer}"', [])
        for method, answer in _METHODS.items()
    ]
    provider = bean("plugin.PluginProvider", *lookups)
    interface = _prop("proxyInterfaces", ("list", [item("org.apache.ignite.plugin.IgnitePlugin")]))
    return [
        (
            f'bean id="{_NAME} parser" class="{spring}.expression.spel.standard.SpelExpressionParser"',
            [],
        ),
        (
            f'bean id="{_NAME} rule" factory-bean="{_NAME} parser" factory-method="parseExpression"',
            [(f'constructor-arg value="{literal(_RULE)}"', [])],
        ),
        (
            f'bean id="{_NAME} check" scope="prototype" factory-bean="{_NAME} rule" factory-method="getValue"',
            [],
        ),
        # An empty map returns null for methods with one argument and with two.
        (f'bean id="{_NAME} nothing" class="java.util.HashMap"', []),
        (f'bean id="{_NAME} one" scope="prototype" {nothing}="get"', []),
        (f'bean id="{_NAME} two" scope="prototype" {nothing}="replace"', []),
        (
            f'bean id="{_NAME} text" class="java.lang.String"',
            [(f'constructor-arg value="{_NAME}"', [])],
        ),
        (
            f'bean id="{_NAME} plugin" class="{spring}.aop.framework.ProxyFactoryBean"',
            [interface, (f'property name="targetName" value="{_NAME} text"', [])],
        ),
        (provider[0].replace("bean ", f'bean id="{_NAME}" ', 1), provider[1]),
    ]


MIB: Final = 1 << 20
DEFAULT_PARTITION_COUNTS: Final = tuple(1 << power for power in range(11))
_TLS_FACTORY: Final = _prop("sslContextFactory", ('ref bean="tlsFactory"', []))


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
        persist: True if data are kept on disk and survive a restart.
        partition_counts: Counts N that get a cache template `pN*`.
        tls: Stores for TLS with client certificates; None for plain connections.
        authentication: True if clients must log in; needs `persist`.
        data_center: Data center of the node, as its attribute `data_center`; None if it has none.
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
    guard = [] if config.persist else _guard_beans()
    tls = _tls_beans(config.tls) if config.tls else []
    return document([*guard, *tls, _ignite(config)])


def template_xml(partition_counts: Iterable[int]) -> str:
    """Return the XML with which caches of your own cluster can choose their partition count.

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
        _prop("connectorConfiguration", ("null", [])),
        *([] if config.persist else [_PROVIDER]),
        _failure_handler(config),
        _discovery(config),
        _prop(
            "communicationSpi",
            bean(
                "spi.communication.tcp.TcpCommunicationSpi",
                value("localPort", config.communication_port),
                value("localPortRange", 0),
                # Use the system's own sizes. Ignite's 32 KB are smaller than a loopback packet, and
                # traffic between members then stalls, occasionally for minutes.
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
            _prop("sqlConfiguration", no_history),
        ]
    if config.tls:
        properties.append(_TLS_FACTORY)
    return bean("configuration.IgniteConfiguration", *properties)


def _attributes(data_center: str) -> Element:
    """Return the attributes of a node by which clients find the nearest copies."""
    return _prop("userAttributes", ("map", [entry(DATA_CENTER, data_center)]))


def _failure_handler(config: NodeConfig) -> Element:
    """Return a failure handler that keeps an in-memory node running when a region is full.

    A full memory region is a CRITICAL_ERROR, and Ignite's handler then halts the JVM. An in-memory
    node would lose all data, so it ignores the error; the client still gets it. With persistence a
    restart loses nothing, so Ignite's own behaviour is kept.
    """
    ignored = ["SYSTEM_WORKER_BLOCKED", "SYSTEM_CRITICAL_OPERATION_TIMEOUT"]
    if not config.persist:
        ignored.append("CRITICAL_ERROR")
    types = _prop("ignoredFailureTypes", ("set", [item(name) for name in ignored]))
    return _prop("failureHandler", bean("failure.StopNodeOrHaltFailureHandler", types))


def _discovery(config: NodeConfig) -> Element:
    own = f"{config.local_host or '127.0.0.1'}:{config.discovery_port}"
    addresses = config.discovery_addresses or (own,)
    finder = bean(
        "spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder",
        _prop("addresses", ("list", [item(address) for address in addresses])),
    )
    return _prop(
        "discoverySpi",
        bean(
            "spi.discovery.tcp.TcpDiscoverySpi",
            value("localPort", config.discovery_port),
            value("localPortRange", 0),
            value("joinTimeout", 30_000),
            _prop("ipFinder", finder),
        ),
    )


def _storage(config: NodeConfig) -> Element:
    region = [
        value("name", "default"),
        value("initialSize", min(config.region_bytes, 64 * MIB)),
        value("maxSize", config.region_bytes),
        value("persistenceEnabled", config.persist),
    ]
    # Pages of 16 KB read and load data larger than the region twice as fast: an entry of 100 KB is
    # read from disk in 7 pieces instead of 25. In memory they gain little, and the partitions of
    # each empty cache would take four times the memory for as long as the node runs.
    page_bytes = 16 << 10 if config.persist else 4096
    storage = [value("pageSize", page_bytes), value("metricsEnabled", True)]
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
    storage.append(_prop("defaultDataRegionConfiguration", region_bean))
    return _prop(
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
    return _prop(
        "clientConnectorConfiguration",
        bean("configuration.ClientConnectorConfiguration", *properties),
    )


def _tls_beans(stores: TlsStores) -> list[Element]:
    """Return the beans for `_TLS_FACTORY`: key stores, their TLS context, and its factory.

    SYS.CONFIGURATION shows every user the properties of Ignite's own SslContextFactory, with both
    passwords. So the configuration contains a factory without properties instead.
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
        _prop("protocols", ("array", [item("TLSv1.2"), item("TLSv1.3")])),
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
    return _prop("cacheConfiguration", ("list", [_template(count) for count in counts]))


def _template(count: int) -> Element:
    affinity = bean(
        "cache.affinity.rendezvous.RendezvousAffinityFunction", value("partitions", count)
    )
    return bean(
        "configuration.CacheConfiguration",
        value("name", f"p{count}*"),
        # With Ignite's default, a lost partition silently reads as empty; this raises an error.
        value("partitionLossPolicy", "READ_WRITE_SAFE"),
        _prop("affinity", affinity),
    )
