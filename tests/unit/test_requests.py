"""Request bodies: equal to pyignite's where it has the operation, else read back field by field."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyignite.api import affinity, binary, cache_config, cluster, key_value, tx_api
from pyignite.api.sql import (
    resource_close,
    scan,
    scan_cursor_get_page,
    sql_fields,
    sql_fields_cursor_get_page,
)
from pyignite.connection.bitmask_feature import BitmaskFeature
from pyignite.connection.handshake import HandshakeRequest
from pyignite.connection.protocol_context import ProtocolContext
from pyignite.queries.cache_info import CacheInfo
from pyignite.stream import BinaryStream

from ignitetf.errors import WireError
from ignitetf.wire import requests
from ignitetf.wire.answers import (
    damaged,
    int_at,
    pairs_at,
    read_bool,
    read_int,
    read_long,
    read_sized,
    string_at,
    uuid_at,
)
from ignitetf.wire.codes import Feature, OpCode, TypeCode
from ignitetf.wire.frames import handshake_request, request_frames, request_head
from ignitetf.wire.requests import encode_bytes, encode_parameter, encode_string, encode_uuid

CONTEXT = ProtocolContext((1, 7, 0), BitmaskFeature.all_supported())
HEAD_BYTES = 14  # length, op code, request id

ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
# Of a text with a zero character pyignite sends as many zeros as it has bytes.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
blobs = st.binary(max_size=40)


class Sent(Exception):
    """The frame that pyignite wanted to send."""


class Recorder:
    """A connection that sends nothing, and its client."""

    protocol_context = CONTEXT
    compact_footer = True
    _event_listeners = None

    @property
    def client(self):
        return self

    def request(self, data):
        raise Sent(bytes(data))


def pyignite(function, *args, **options):
    """Op code and body of what pyignite sends."""
    with pytest.raises(Sent) as caught:
        function(Recorder(), *args, **options)
    (frame,) = caught.value.args
    length, op, request = struct.unpack_from("<ihq", frame)
    assert length == len(frame) - 4
    assert frame[:HEAD_BYTES] == request_head(len(frame) - HEAD_BYTES, op, request)
    return op, frame[HEAD_BYTES:]


def info(cache):
    return CacheInfo(cache_id=cache, protocol_context=CONTEXT)


@given(ints, texts, blobs, blobs)
def test_requests_about_one_key(cache, key, value, other):
    k, v, o = encode_string(key), encode_bytes(value), encode_bytes(other)
    for op, function, objects, args in (
        (OpCode.CACHE_GET, key_value.cache_get, (k,), (key,)),
        (OpCode.CACHE_PUT, key_value.cache_put, (k, v), (key, value)),
        (OpCode.CACHE_PUT_IF_ABSENT, key_value.cache_put_if_absent, (k, v), (key, value)),
        (OpCode.CACHE_REMOVE_KEY, key_value.cache_remove_key, (k,), (key,)),
        (OpCode.CACHE_REMOVE_IF_EQUALS, key_value.cache_remove_if_equals, (k, v), (key, value)),
        (
            OpCode.CACHE_REPLACE_IF_EQUALS,
            key_value.cache_replace_if_equals,
            (k, v, o),
            (key, value, other),
        ),
        (OpCode.CACHE_CLEAR, key_value.cache_clear, (), ()),
    ):
        expected = pyignite(function, info(cache), *args)
        assert (op, requests.cache_request(cache, *objects)) == expected


@given(ints, st.dictionaries(texts, blobs, min_size=1, max_size=5))
def test_requests_about_several_keys(cache, pairs):
    keys = [encode_string(key) for key in pairs]
    both = [encode_string(key) + encode_bytes(value) for key, value in pairs.items()]
    for op, function, items, given_ in (
        (OpCode.CACHE_GET_ALL, key_value.cache_get_all, keys, list(pairs)),
        (OpCode.CACHE_REMOVE_KEYS, key_value.cache_remove_keys, keys, list(pairs)),
        (OpCode.CACHE_PUT_ALL, key_value.cache_put_all, both, pairs),
    ):
        expected = pyignite(function, info(cache), given_)
        assert (op, requests.batch_request(cache, iter(items))) == expected
        head = requests.batch_head(cache, len(items))
        assert (op, b"".join([head, *items])) == expected


@given(ints, ints, texts, blobs)
def test_requests_in_a_transaction_name_it_behind_the_flags(cache, transaction, key, value):
    objects = (encode_string(key), encode_bytes(value))
    plain = requests.cache_request(cache, *objects)
    inside = requests.cache_request(cache, *objects, transaction=transaction)
    assert struct.unpack_from("<ibi", inside) == (cache, 2, transaction)
    assert inside[9:] == plain[5:]
    batch = requests.batch_request(cache, objects, transaction=transaction)
    assert struct.unpack_from("<ibii", batch) == (cache, 2, transaction, 2)
    assert batch[13:] == b"".join(objects)


@given(ints)
def test_requests_about_a_cache(cache):
    size = pyignite(key_value.cache_get_size, info(cache))
    assert (OpCode.CACHE_GET_SIZE, requests.size_request(cache)) == size
    destroy = pyignite(cache_config.cache_destroy, cache)
    assert (OpCode.CACHE_DESTROY, requests.destroy_request(cache)) == destroy
    partitions = pyignite(affinity.cache_get_node_partitions, cache)
    assert (OpCode.CACHE_PARTITIONS, requests.partitions_request(cache)) == partitions


@given(ints, st.integers(1, 1 << 20), st.none() | st.integers(0, 65_535), st.booleans())
def test_scans(cache, page_size, partition, local):
    body = requests.scan_request(cache, page_size, partition, local=local)
    which = -1 if partition is None else partition
    expected = pyignite(scan, info(cache), page_size, which, local)
    assert (OpCode.QUERY_SCAN, body) == expected


def test_no_scan_of_a_negative_partition():
    with pytest.raises(ValueError, match="partition -1 is negative"):
        requests.scan_request(1, 10, -1)


@given(longs)
def test_cursors(cursor):
    body = requests.cursor_request(cursor)
    assert (OpCode.QUERY_SCAN_PAGE, body) == pyignite(scan_cursor_get_page, cursor)
    page = pyignite(sql_fields_cursor_get_page, cursor, 1)
    assert (OpCode.QUERY_SQL_FIELDS_PAGE, body) == page
    assert (OpCode.RESOURCE_CLOSE, body) == pyignite(resource_close, cursor)


@given(
    ints,
    texts,
    texts,
    st.lists(texts | longs.filter(lambda n: abs(n) >> 31) | blobs, max_size=4),
    st.integers(1, 1 << 20),
    st.integers(0, 1 << 40),
    st.none() | st.lists(st.integers(0, 65_535), max_size=4),
)
def test_sql(cache, schema, statement, params, page_size, timeout_ms, partitions):
    body = requests.sql_request(
        schema,
        statement,
        [encode_parameter(value) for value in params],
        page_size,
        cache=cache,
        partitions=partitions,
        timeout_ms=timeout_ms,
    )
    op, expected = pyignite(
        sql_fields,
        info(cache),
        statement,
        page_size,
        params,
        schema,
        1,  # a SELECT
        lazy=True,
        timeout=timeout_ms,
    )
    assert op == OpCode.QUERY_SQL_FIELDS
    # pyignite knows neither the list of partitions nor the size of batches of updates.
    assert body[: len(expected)] == expected
    count, *numbers = struct.unpack(f"<{(len(body) - len(expected)) // 4}i", body[len(expected) :])
    assert (count, numbers) == (
        (-1, [1]) if partitions is None else (len(partitions), [*partitions, 1])
    )


@given(ints, st.integers(0, 1 << 40), st.booleans())
def test_transactions(transaction, timeout_ms, commit):
    expected = pyignite(tx_api.tx_start, 1, 1, timeout_ms)
    assert (OpCode.TX_START, requests.transaction_start_request(timeout_ms)) == expected
    body = requests.transaction_end_request(transaction, commit=commit)
    assert struct.unpack("<i?", body) == (transaction, commit)


@given(ints, st.booleans())
def test_types_and_the_cluster(number, active):
    types = pyignite(binary.get_binary_type, number)
    assert (OpCode.BINARY_TYPE_GET, requests.type_request(number)) == types
    state = pyignite(cluster.cluster_set_state, int(active))
    assert (OpCode.CLUSTER_CHANGE_STATE, requests.cluster_state_request(active=active)) == state
    # The platform of Java is 0; the newest topology against none.
    assert struct.unpack("<bi", requests.class_name_request(number)) == (0, number)
    assert struct.unpack("<qq", requests.nodes_request()) == (-1, -1)


@pytest.mark.parametrize("login", [(None, None), ("ignite", "secret")])
@pytest.mark.parametrize("version", [(1, 6, 0), (1, 7, 0)])
def test_handshakes(version, login):
    features = Feature.CLUSTER_STATES | Feature.QUERY_PARTITIONS_BATCH_SIZE
    context = ProtocolContext(version, BitmaskFeature(int(features)))
    with BinaryStream(None) as stream:
        HandshakeRequest(context, *login).from_python(stream)
        expected = stream.getvalue()
    body = handshake_request(version, features, *login)
    if version >= (1, 7, 0):
        # The mask is as long as its highest bit asks for; of pyignite's own bits it has more.
        mask = struct.unpack_from("<i", body, 13)[0]
        assert int.from_bytes(body[17 : 17 + mask], "little") == features
        tail = struct.unpack_from("<i", expected, 13)[0]
        assert body[17 + mask :] == expected[17 + tail :]
        assert body[4:13] == expected[4:13]
    else:
        assert body == expected
    assert struct.unpack_from("<i", body)[0] == len(body) - 4


@given(longs, ints, st.booleans(), st.binary(max_size=8))
def test_fixed_answers(number, small, flag, cut):
    assert read_long(memoryview(struct.pack("<q", number)), "x") == number
    assert read_int(memoryview(struct.pack("<i", small)), "x") == small
    assert read_bool(memoryview(bytes([flag])), "x") is flag
    for read, size in ((read_long, 8), (read_int, 4)):
        if len(cut) < size:
            with pytest.raises(WireError, match="damaged answer: the size"):
                read(memoryview(cut), "the size")
    if len(cut) != 1 or cut[0] > 1:
        with pytest.raises(WireError, match="damaged answer: the size"):
            read_bool(memoryview(cut), "the size")


@given(blobs | texts | st.none())
def test_an_answer_of_one_object(value):
    data = encode_parameter(value)
    code, found = read_sized(memoryview(data), "x")
    assert code == data[0]
    assert found == (b"" if value is None else value.encode() if code == 9 else value)
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(WireError, match="damaged answer: x"):
            read_sized(memoryview(wrong), "x")


def test_an_answer_of_another_type():
    with pytest.raises(WireError, match="type 4 instead of a text"):
        read_sized(memoryview(encode_parameter(1)), "x")


@given(st.lists(st.tuples(texts, st.none() | blobs), max_size=5), st.integers(1, 40))
def test_pairs(pairs, cut):
    data = b"".join(encode_parameter(x) for pair in pairs for x in pair)
    expected = [(key.encode(), value) for key, value in pairs]
    assert pairs_at(memoryview(b"any" + data), 3, len(pairs)) == expected
    if pairs:
        with pytest.raises(WireError), damaged("pairs"):
            pairs_at(memoryview(data)[:-cut], 0, len(pairs))


@given(texts, st.uuids(), ints)
def test_values_at_a_position(text, number, small):
    data = b"any" + encode_string(text)
    assert string_at(data, 3) == (text, len(data))
    assert string_at(b"any" + bytes([TypeCode.NULL]), 3) == (None, 4)
    with pytest.raises(WireError), damaged("a name"):
        string_at(data[:-1], 3)
    high, low = divmod(number.int, 1 << 64)
    assert uuid_at(encode_uuid(high, low), 1) == number
    assert encode_uuid(high, low) == encode_parameter(number)
    assert int_at(b"any" + struct.pack("<i", small), 3) == small


@given(ints, st.integers(1, (1 << 31) - 1), st.lists(st.integers(0, (1 << 31) - 1), max_size=9))
def test_requests_made_together_are_those_made_alone(cache, page_size, partitions):
    bodies = requests.scan_requests(cache, page_size, partitions)
    alone = [requests.scan_request(cache, page_size, partition) for partition in partitions]
    assert [body.tobytes() for body in bodies] == alone
    sent = request_frames(OpCode.QUERY_SCAN, 7, bodies)
    heads = [request_head(len(b), OpCode.QUERY_SCAN, 7 + n) for n, b in enumerate(alone)]
    assert sent == b"".join(head + body for head, body in zip(heads, alone, strict=True))


def test_a_negative_partition_is_refused_together_too():
    with pytest.raises(ValueError, match="negative"):
        requests.scan_requests(1, 10, [3, -1, 4])
