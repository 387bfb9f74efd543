import xml.etree.ElementTree as ET

import pytest

from ignitetf.errors import ConfigError
from ignitetf.node.config import (
    DEFAULT_PARTITION_COUNTS,
    NodeConfig,
    TlsStores,
    masked,
    spring_xml,
    template_xml,
)

PROVIDER_NAME = "memory guard"
BEANS = "{http://www.springframework.org/schema/beans}"


def parse(config):
    return ET.fromstring(spring_xml(config).encode())


def values(root, name):
    return [p.get("value") for p in root.iter(f"{BEANS}property") if p.get("name") == name]


def test_every_port_is_the_one_given_and_none_moves():
    root = parse(
        NodeConfig(
            "n", "/w", client_port=1, discovery_port=2, communication_port=3, region_bytes=1 << 30
        )
    )
    assert values(root, "port") == ["1"]
    assert values(root, "localPort") == ["2", "3"]
    assert values(root, "portRange") + values(root, "localPortRange") == ["0", "0", "0"]
    assert values(root, "localHost") == values(root, "host") == ["127.0.0.1"]
    assert values(root, "maxSize") == [str(1 << 30)]


def test_members_talk_through_buffers_of_the_systems_size():
    """Ignite's of 32 KB are less than a packet over loopback, and what they send stands still."""
    root = parse(NodeConfig("n", "/w"))
    assert values(root, "socketReceiveBuffer") == values(root, "socketSendBuffer") == ["0"]


def test_templates_carry_their_count_and_a_safe_loss_policy():
    root = parse(NodeConfig("n", "/w", partition_counts=(8, 1, 12, 8)))
    names = [v for v in values(root, "name") if v.startswith("p")]
    assert names == ["p1*", "p8*", "p12*"]
    assert values(root, "partitions") == ["1", "8", "12"]
    assert values(root, "partitionLossPolicy") == ["READ_WRITE_SAFE"] * 3


def test_default_templates_are_the_powers_of_two_to_1024():
    assert DEFAULT_PARTITION_COUNTS == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def test_template_part_alone_is_what_stands_in_the_whole():
    part = ET.fromstring(template_xml([16]))
    assert part.get("name") == "cacheConfiguration"
    assert [p.get("value") for p in part.iter("property") if p.get("name") == "name"] == ["p16*"]


@pytest.mark.parametrize("count", [0, -1, 65_001])
def test_impossible_partition_counts_are_refused(count):
    with pytest.raises(ConfigError, match=str(count)):
        spring_xml(NodeConfig("n", "/w", partition_counts=(count,)))


@pytest.mark.parametrize("path", ["/a/${user.home}", "/a/#{1+1}", "/a\nb"])
def test_values_that_spring_would_evaluate_are_refused(path):
    with pytest.raises(ConfigError):
        spring_xml(NodeConfig("n", path))


def test_special_characters_survive():
    path = "/a & <b> \"c\" 'd' ü"
    assert values(parse(NodeConfig("n", path)), "workDirectory") == [path]


def test_a_full_region_halts_only_a_node_that_loses_nothing_by_it():
    def ignored(config):
        return [v.text for v in parse(config).iter(f"{BEANS}value")]

    assert "CRITICAL_ERROR" in ignored(NodeConfig("n", "/w"))
    assert "CRITICAL_ERROR" not in ignored(NodeConfig("n", "/w", persist=True))


def test_a_node_in_memory_has_the_guard_and_every_method_of_it_an_answer():
    root = parse(NodeConfig("n", "/w"))
    beans = {b.get("id"): b for b in root.iter(f"{BEANS}bean") if b.get("id")}
    referred = [r.get("bean") for r in root.iter(f"{BEANS}ref")]
    assert referred == [PROVIDER_NAME]
    answers = {m.get("name"): m.get("bean") for m in beans[PROVIDER_NAME]}
    assert answers["createCacheProvider"] == f"{PROVIDER_NAME} check"
    assert set(answers.values()) <= set(beans)
    factories = {b.get("factory-bean") for b in beans.values()} - {None}
    assert factories <= set(beans)
    # With persistence, what finds no room in memory goes to disk.
    assert "memory guard" not in spring_xml(NodeConfig("n", "/w", persist=True))


def test_login_needs_persistence():
    with pytest.raises(ConfigError, match="disk"):
        spring_xml(NodeConfig("n", "/w", authentication=True))
    root = parse(NodeConfig("n", "/w", authentication=True, persist=True))
    assert values(root, "authenticationEnabled") == ["true"]


def test_tls_is_for_clients_and_members_and_asks_for_certificates():
    stores = TlsStores("/k.p12", "secret-k", "/t.p12", "secret-t")
    assert "secret" not in repr(stores)
    root = parse(NodeConfig("n", "/w", tls=stores))
    assert values(root, "sslClientAuth") == ["true"]
    assert values(root, "keyStoreFilePath") == ["/k.p12"]  # of one factory, for both
    assert len([p for p in root.iter() if p.get("name") == "sslContextFactory"]) == 2


def test_no_password_is_left_in_a_masked_document_and_nothing_else_changes():
    stores = TlsStores("/k.p12", 'a"b<&', "/t.p12", "secret-t")
    text = spring_xml(NodeConfig("n", "/w", tls=stores, persist=True, authentication=True))
    root = ET.fromstring(masked(text).encode())
    for name in ("keyStorePassword", "trustStorePassword"):
        assert values(root, name) == ["***"]
    plain = text.replace("a&quot;b&lt;&amp;", "***").replace("secret-t", "***")
    assert masked(text) == plain != text
    text = spring_xml(NodeConfig("n", "/w"))
    assert masked(text) == text


def test_without_an_own_host_all_interfaces_are_bound():
    root = parse(NodeConfig("n", "/w", local_host=None, discovery_addresses=("a:1", "b:2")))
    assert values(root, "localHost") == values(root, "host") == []
    assert {"a:1", "b:2"} <= {v.text for v in root.iter(f"{BEANS}value")}
