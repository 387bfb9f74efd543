"""The memory guard: makes a node refuse a cache that it has no room for.

Each partition of a cache takes two pages of the data region as soon as the cache is created, before
it has any rows (measured on 2.17.0: 2,050 pages, 8 MB, for 1,024 partitions, 2,052 for a SQL
table). Inserting rows leaves some 350 pages free (`ensureFreeSpaceForInsert`). If partitions find
no page, the error is raised in the thread that arranges them, and Ignite halts the node, with all
data that it has in memory.

So the guard checks first. Ignite calls `PluginProvider.createCacheProvider` when it begins to
create a cache, whoever asked for it, and an error there undoes the cache on all nodes and reaches
the client ("Failed to complete exchange process"). The provider is built with Spring alone, by
method injection: `lookup-method` lets a bean answer a method, and passes the method's arguments to
the bean's constructor or factory method. `memory guard check` is the rule below, an expression in
Spring's language whose root is the context of the new cache; all other methods do nothing.

Two cases remain. The guard is not asked about partitions that arrive because another node left the
cluster, nor about index pages for a table that is already full. The latter fails and leaves the
data intact, but the pages it took, including those 350, come back only with the table: dropping it
frees them along with the rows, and if the rows find no free page first, the drop ends the node
(seen in 2 of 24 drops). Removing rows before the drop frees the pages it needs.
"""

from __future__ import annotations

from typing import Final

from ignitetf.node.spring import Element, bean, item, literal, prop
from ignitetf.partitions import PAGES_PER_PARTITION, RESERVE_PAGES, RESERVE_PART

__all__ = ["PROVIDER", "guard_beans"]

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
# "The first of these regions with enough room, or else fail". Success must return null.
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
PROVIDER: Final = prop("pluginProviders", ("list", [(f'ref bean="{_NAME}"', [])]))


def guard_beans() -> list[Element]:
    """Return the beans of the guard; `PROVIDER` passes them to the node."""
    spring = "org.springframework"
    nothing = 'factory-bean="memory guard nothing" factory-method'
    lookups: list[Element] = [
        (f'lookup-method name="{method}" bean="{_NAME} {answer}"', [])
        for method, answer in _METHODS.items()
    ]
    provider = bean("plugin.PluginProvider", *lookups)
    interface = prop("proxyInterfaces", ("list", [item("org.apache.ignite.plugin.IgnitePlugin")]))
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
