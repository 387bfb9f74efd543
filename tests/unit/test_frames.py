"""Heads of messages, and what a cluster reports: read back as packed here, and refused when cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import WireError
from ignitetf.wire.answers import (
    NodeEndpoint,
    PartitionMap,
    damaged,
    read_cache_names,
    read_endpoints,
    read_error,
    read_partition_map,
)
from ignitetf.wire.codes import Feature, Status
from ignitetf.wire.frames import (
    LENGTH_BYTES,
    MAX_HEAD_BYTES,
    Accepted,
    Refused,
    framed,
    read_answer_head,
    read_answer_length,
    read_handshake,
    read_length,
    read_request_head,
    request_head,
)
from ignitetf.wire.requests import encode_bytes, encode_string

ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
shorts = st.integers(-(1 << 15), (1 << 15) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
flag_bits = st.integers(0, 3) | shorts  # two are known
hosts = st.sampled_from(["127.0.0.1", "example.org", "::1", "fe80::2"])


def cut_everywhere(data, read):
    """No proper beginning of the bytes can be read."""
    for end in range(len(data)):
        with pytest.raises(WireError):
            read(memoryview(data[:end]))


def packed_uuid(value):
    return struct.pack("<QQ", value.int >> 64, value.int & (1 << 64) - 1)


@given(st.integers(0, 1 << 20), st.integers(0, (1 << 15) - 1), longs)
def test_heads_of_requests(nbytes, op, request):
    head = request_head(nbytes, op, request)
    assert read_request_head(head) == (op, request)
    assert read_length(head) == len(head) - LENGTH_BYTES + nbytes


@given(st.binary(max_size=40))
def test_a_message_comes_behind_its_length(message):
    frame = framed(message)
    assert (read_length(frame), frame[LENGTH_BYTES:]) == (len(message), message)


@given(ints)
def test_an_answer_is_at_least_as_long_as_its_head(length):
    prefix = struct.pack("<i", length)
    if length >= struct.calcsize("<qh"):
        assert read_answer_length(prefix) == length
    else:
        with pytest.raises(WireError, match=f"length {length}"):
            read_answer_length(prefix)


@given(longs, flag_bits, longs, ints, st.binary(max_size=20))
def test_heads_of_answers(request, flags, major, minor, body):
    topology = struct.pack("<qi", major, minor) if flags & 2 else b""
    answer = struct.pack("<qh", request, flags) + topology + body
    if flags not in range(4):
        with pytest.raises(WireError, match="unknown flags"):
            read_answer_head(answer)
        return
    head = read_answer_head(answer)
    assert head == read_answer_head(memoryview(answer)[:MAX_HEAD_BYTES])
    assert (head.request_id, head.failed) == (request, bool(flags & 1))
    assert head.topology == ((major, minor) if topology else None)
    assert answer[head.begin :] == body
    cut_everywhere(answer[: head.begin], read_answer_head)


@given(ints, texts)
def test_errors(status, message):
    body = struct.pack("<i", status) + encode_string(message)
    assert read_error(memoryview(body)) == (status, message)
    cut_everywhere(body, read_error)


@given(st.integers(0, 255), st.uuids())
def test_handshakes_that_are_accepted(mask, node):
    tail = bytes([10]) + packed_uuid(node)
    features = encode_bytes(bytes([mask]))
    for version, answer, found in (
        ((1, 7, 0), b"\1" + features + tail, Accepted(Feature(mask), node)),
        ((1, 6, 0), b"\1" + tail, Accepted(Feature(0), node)),
        ((1, 7, 0), b"\1" + features + b"\x65", Accepted(Feature(mask), None)),
    ):
        assert read_handshake(answer, version) == found
        cut_everywhere(answer, lambda data, v=version: read_handshake(data, v))


@given(st.tuples(shorts, shorts, shorts), texts, ints)
def test_handshakes_that_are_refused(version, message, status):
    answer = b"\0" + struct.pack("<3h", *version) + encode_string(message)
    # Old nodes give no status.
    assert read_handshake(answer, (1, 7, 0)) == Refused(version, message, Status.FAILED)
    cut_everywhere(answer, lambda data: read_handshake(data, (1, 7, 0)))
    answer += struct.pack("<i", status)
    assert read_handshake(answer, (1, 7, 0)) == Refused(version, message, status)


@given(st.integers(2, 255), st.binary(max_size=20))
def test_another_first_byte_is_no_handshake(first, rest):
    with pytest.raises(WireError, match=f"byte {first}"):
        read_handshake(bytes([first]) + rest, (1, 7, 0))


def guarded(read):
    """A reader of several values, within `damaged`."""

    def run(data):
        with damaged("it"):
            return read(data)

    return run


@given(st.lists(texts, max_size=5))
def test_names_of_caches(names):
    body = struct.pack("<i", len(names)) + b"".join(map(encode_string, names))
    assert read_cache_names(memoryview(body)) == names
    cut_everywhere(body, guarded(read_cache_names))


@given(
    st.tuples(longs, ints),
    st.dictionaries(st.uuids(), st.sets(st.integers(0, 50), max_size=6), min_size=1, max_size=3),
    st.integers(0, 2),
)
def test_owners_of_partitions(version, owned, keys):
    """Of a cache, and before it of another that does not tell its own."""
    owners = {partition: node for node, held in owned.items() for partition in held}
    hidden = struct.pack("<bii", 0, 1, 7)
    told = struct.pack("<biii", 1, 1, 8, keys) + bytes(8 * keys)
    nodes = [
        b"\x0a" + packed_uuid(node) + struct.pack(f"<i{len(held)}i", len(held), *held)
        for node, held in owned.items()
    ]
    body = struct.pack("<qii", *version, 2) + hidden + told + struct.pack("<i", len(nodes))
    body += b"".join(nodes)
    count = max(owners, default=-1) + 1
    assert read_partition_map(memoryview(body)) == PartitionMap(version, count, owners)
    cut_everywhere(body, guarded(read_partition_map))


@given(st.lists(st.tuples(st.uuids(), st.integers(1, 65535), st.lists(hosts)), max_size=3), longs)
def test_nodes(nodes, version):
    body = struct.pack("<qi", version, len(nodes)) + b"".join(
        packed_uuid(node)
        + struct.pack("<ii", port, len(names))
        + b"".join(map(encode_string, names))
        for node, port, names in nodes
    )
    body += struct.pack("<i", 0)  # nodes that have left
    assert read_endpoints(memoryview(body)) == [
        NodeEndpoint(node, tuple(f"[{h}]:{port}" if ":" in h else f"{h}:{port}" for h in names))
        for node, port, names in nodes
    ]
    cut_everywhere(body, guarded(read_endpoints))
