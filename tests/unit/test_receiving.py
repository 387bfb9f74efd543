"""Pages and answers that arrive in pieces, over a socket or without one, become the same rows."""

import random
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
from test_builder import (
    FIELDS,
    LONG_KEY,
    builder_of,
    columns_of,
    entries_of,
    keys_of,
    page_of,
    registry_of,
    same,
    schema_of,
)

from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.concat import concat
from ignitetf.wire.decoder import Decoder
from ignitetf.wire.page_reader import PageReader
from ignitetf.wire.rowends import RowsEnd
from ignitetf.wire.schema import Batch, Column, Schema, field_for
from ignitetf.wire.units import Depth, UnitAnswers, UnitReader

NAMES = ["IMAGE", "LABEL", "NAME", "WEIGHT"]
FIXED = ["IMAGE", "LABEL", "WEIGHT"]  # of one length
SMALL = 1 << 16


@pytest.fixture
def sockets():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 20, 0))
    with ours, theirs:
        yield ours, theirs


class Arrival:
    """Bytes of which some are here, and others come from a socket, by itself or by Python."""

    limit_s = 20.0

    def __init__(self, sock, here, own):
        self._sock, self._here = sock, memoryview(here)
        self.socket_number = sock.fileno() if own else -1

    @property
    def bytes_here(self):
        return len(self._here)

    def receive_into(self, view):
        count = min(len(view), len(self._here))
        view[:count], self._here = self._here[:count], self._here[count:]
        while count < len(view):
            if not (more := self._sock.recv_into(view[count:])):
                raise ConnectionResetError("closed")
            count += more


def dripping(sock, data, rng):
    """Send bytes in pieces of any size, in a thread."""

    def run():
        at = 0
        while at < len(data):
            size = int(rng.integers(1, 200_000))
            sock.sendall(data[at : at + size])
            at += size

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def rows_of(rng, rows, names=NAMES):
    schema = schema_of(LONG_KEY, names)
    columns = columns_of(rows, rng)
    batch = Batch(keys_of(LONG_KEY, rows, rng), {n: columns[n] for n in names})
    return schema, entries_of(schema, batch)


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_arrives_is_that_page(sockets, own, seed):
    rng = np.random.default_rng(seed)
    schema, entries = rows_of(rng, 4000)
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, 640, page)
    reader = PageReader(builder, BufferPool(), builder.learn)
    data, here = page.data.tobytes(), int(rng.integers(0, 300_000))
    thread = dripping(sockets[1], data[here:] + b"next", rng)
    arrival = Arrival(sockets[0], data[:here], own)
    assert reader.read(arrival, len(data), page.count) == (page.count, None)
    rest = bytearray(4)
    arrival.receive_into(memoryview(rest))
    assert rest == b"next"
    thread.join()
    same(concat(list(builder.take())), Decoder(schema, registry).decode(page))


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
def test_what_has_another_form_is_left_with_all_that_follows(sockets, own):
    rng = np.random.default_rng(7)
    schema, entries = rows_of(rng, 3000)
    strange = bytearray(entries[1234])
    strange[9 + 5 + 1] = 9  # the version of the object
    entries[1234] = bytes(strange)
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, 640, page)
    reader = PageReader(
        builder, BufferPool(), lambda entry: entry[15] == 1 and builder.learn(entry)
    )
    thread = dripping(sockets[1], page.data.tobytes() + b"next", rng)
    arrival = Arrival(sockets[0], b"", own)
    rows, rest = reader.read(arrival, len(page.data), page.count)
    thread.join()
    assert rows == 1234
    assert rest.tobytes() == b"".join(entries[1234:])
    assert sockets[0].recv(4) == b"next"
    assert sum(map(len, builder.take())) == 1234


@pytest.mark.parametrize("more", [-9, 9])
def test_too_few_or_too_many_bytes_are_left(sockets, more):
    """What is wrong with them is for the decoder to say."""
    rng = np.random.default_rng(8)
    schema, entries = rows_of(rng, 50)
    registry, page = registry_of(schema), page_of(entries)
    data = (page.data.tobytes() + bytes(9))[: len(page.data) + more]
    builder = builder_of(schema, registry, 640, page)
    reader = PageReader(builder, BufferPool(), builder.learn)
    sockets[1].sendall(data)
    rows, rest = reader.read(Arrival(sockets[0], b"", True), len(data), page.count)
    assert (rows, rest.tobytes()) == ((50, bytes(9)) if more > 0 else (49, entries[49][:-9]))
    found = reader.add(np.frombuffer(data, np.uint8), page.count)
    assert (found[0], found[1].tobytes()) == (rows, rest.tobytes())


def test_a_row_larger_than_a_piece_is_taken_too(sockets):
    rng = np.random.default_rng(9)
    schema, entries = rows_of(rng, 6, ["JPEG"])
    columns = columns_of(1, rng)
    columns["JPEG"] = columns["JPEG"].from_bytes([rng.bytes(900_000)])
    entries[3:3] = entries_of(schema, Batch(keys_of(LONG_KEY, 1, rng), {"JPEG": columns["JPEG"]}))
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, 640, page)
    reader = PageReader(builder, BufferPool(), builder.learn)
    thread = dripping(sockets[1], page.data.tobytes(), rng)
    found = reader.read(Arrival(sockets[0], b"", True), len(page.data), page.count)
    thread.join()
    assert found == (7, None)
    same(concat(list(builder.take())), Decoder(schema, registry).decode(page))


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
def test_a_connection_that_ends_is_an_error(sockets, own):
    rng = np.random.default_rng(1)
    schema, entries = rows_of(rng, 3000)
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, 640, page)
    reader = PageReader(builder, BufferPool(), builder.learn)
    before = builder.position
    sockets[1].sendall(page.data.tobytes()[:100_000])
    sockets[1].close()
    with pytest.raises(ConnectionResetError):
        reader.read(Arrival(sockets[0], b"", own), len(page.data), page.count)
    builder.return_to(before)
    assert sum(map(len, builder.take())) == 0


def test_silence_and_trickles_end_with_a_timeout(sockets):
    rng = np.random.default_rng(1)
    schema, entries = rows_of(rng, 3000)
    registry, page = registry_of(schema), page_of(entries)
    sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    stop = threading.Event()

    def trickle():
        while not stop.wait(0.02):
            sockets[1].send(b"\x04")

    for sends in (False, True):
        builder = builder_of(schema, registry, 640, page)
        reader = PageReader(builder, BufferPool(), builder.learn)
        arrival = Arrival(sockets[0], b"", True)
        arrival.limit_s = 0.2
        thread = threading.Thread(target=trickle, daemon=True)
        if sends:
            thread.start()
        with pytest.raises(TimeoutError):
            reader.read(arrival, len(page.data), page.count)
        stop.set()


# Units


def answer(request, body, flags=0):
    message = struct.pack("<qh", request, flags) + body
    return struct.pack("<i", len(message)) + message


def only_page(entries, more=0):
    data = b"".join(entries)
    return struct.pack("<qi", 77, len(entries)) + data + bytes([more])


def units_of(rng, count, names=NAMES):
    """The rows of so many units, and their answers."""
    schema, entries = rows_of(rng, count * 90, names)
    ends = np.sort(rng.integers(1, len(entries), count - 1)).tolist()
    ends = [max(end, n + 1) for n, end in enumerate(ends)]
    parts = [entries[a:b] for a, b in zip([0, *ends], [*ends, len(entries)], strict=True)]
    parts = [part or entries[:1] for part in parts]
    return schema, parts


def read_all(reader, answers, units, sock, own):
    """Read units until there is nothing more to do; returns the last end and what was taken."""
    first = reader.next
    while True:
        reader.begin(first + units, 20.0)
        end = reader.read()
        if end is RowsEnd.BYTES:
            assert not own
            answers.received(lambda view: sock.recv_into(view))
            continue
        if end is RowsEnd.ASK:
            assert not own
            sock.sendall(answers.due())
            continue
        if end is not RowsEnd.FULL:
            return end, reader.taken(first, reader.next).tolist()


DEPTH = Depth(5, 9, 14)


def expecting(answers, reader, asked, unasked=range(0), frames=b"", rows=None):
    """Begin with the units of one connection."""
    answers.expect(asked, unasked, frames)
    reader.expect(np.zeros(len(asked) + len(unasked), np.int32), rows)
    reader.begin(len(asked) + len(unasked), 20.0)


def counts_of(parts):
    return np.array([len(part) for part in parts], np.int64)


def builder_for(schema, registry, room, entries):
    builder = builder_of(schema, registry, room, page_of(entries))
    builder.learn(np.frombuffer(entries[0], np.uint8))
    return builder


def answers_over(sock, own, depth=DEPTH, links=1, limit_s=20.0):
    number = sock.fileno() if own else -1
    return UnitAnswers(BufferPool(), SMALL, depth, links=links, socket=number, limit_s=limit_s)


def reader_of(schema, registry, room, entries, sock, own, depth=DEPTH):
    builder, answers = builder_for(schema, registry, room, entries), answers_over(sock, own, depth)
    return builder, answers, UnitReader(builder, [answers])


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("room", "block"), [(50, 8 << 20), (640, 8 << 20), (640, SMALL)])
@pytest.mark.parametrize(
    ("names", "known"), [(NAMES, True), (FIXED, False), (FIXED, True)], ids=["", "fixed", "known"]
)
def test_answers_in_any_order_are_the_units_in_theirs(
    monkeypatch, sockets, own, seed, room, block, names, known
):
    """Also where the memory that they are received into is small, and has to grow."""
    monkeypatch.setattr("ignitetf.wire.units._BLOCK_BYTES", block)
    rng = np.random.default_rng(seed)
    schema, parts = units_of(rng, 60, names)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, room, entries, sockets[0], own)
    rows = counts_of(parts) if known else None
    expecting(answers, reader, list(range(100, 160)), rows=rows)
    order = list(range(60))
    random.Random(seed).shuffle(order) if seed else None
    stream = b"".join(answer(100 + n, only_page(parts[n])) for n in order)
    here = int(rng.integers(0, 2000))
    answers.put_back(memoryview(stream[:here]))
    thread = dripping(sockets[1], stream[here:], rng)
    end, taken = read_all(reader, answers, 60, sockets[0], own)
    thread.join()
    assert end is RowsEnd.END
    page = page_of(entries)
    expected = Decoder(schema, registry).decode(page)
    same(concat(list(builder.take())), expected)
    assert [unit[0] for unit in taken] == list(map(len, parts))
    first = 0
    for part, unit in zip(parts, taken, strict=True):
        keys = np.ascontiguousarray(expected.key.values[first : first + len(part)])
        assert unit[1] == zlib.crc32(keys.tobytes())
        first += len(part)


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("links", [2, 5])
@pytest.mark.parametrize("known", [False, True], ids=["", "known"])
def test_units_of_several_connections_are_taken_in_the_order_of_all(own, seed, links, known):
    rng = np.random.default_rng(seed)
    schema, parts = units_of(rng, 60, FIXED)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder = builder_for(schema, registry, 640, entries)
    link_of = rng.integers(0, links, 60)
    pairs = [socket.socketpair() for _ in range(links)]
    answers = [answers_over(ours, own, links=links) for ours, _ in pairs]
    reader, threads = UnitReader(builder, answers), []
    for link, (_, theirs) in enumerate(pairs):
        units = np.flatnonzero(link_of == link).tolist()
        answers[link].expect(units)
        stream = b"".join(answer(n, only_page(parts[n])) for n in rng.permutation(units).tolist())
        threads.append(dripping(theirs, stream, np.random.default_rng([seed, link])))
    reader.expect(link_of, counts_of(parts) if known else None)
    found, batches = [], []
    while reader.next < 60:
        first = reader.next
        reader.begin(60, 0.0)
        while (end := reader.read()) is RowsEnd.BYTES:
            answers[reader.link].received(pairs[reader.link][0].recv_into)
        assert end in (RowsEnd.END, RowsEnd.ENOUGH, RowsEnd.FULL)
        found += reader.taken(first, reader.next)["rows"].tolist()
        batches += builder.take(int(rng.choice([1, 64])))  # what is placed stays in its place
    assert found == list(map(len, parts))
    assert [one.next for one in answers] == np.bincount(link_of, minlength=links).tolist()
    same(concat([*batches, *builder.take()]), Decoder(schema, registry).decode(page_of(entries)))
    for thread, pair in zip(threads, pairs, strict=True):
        thread.join()
        pair[0].close(), pair[1].close()


def test_the_connection_that_ended_is_known(sockets):
    rng = np.random.default_rng(2)
    schema, parts = units_of(rng, 4)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    others = socket.socketpair()
    answers = [answers_over(sockets[0], True), answers_over(others[0], True)]
    reader = UnitReader(builder_for(schema, registry, 640, entries), answers)
    answers[0].expect([0, 1])
    answers[1].expect([2, 3])
    reader.expect(np.array([0, 1, 0, 1], np.int32))
    sockets[1].sendall(answer(0, only_page(parts[0])) + answer(1, only_page(parts[2])))
    others[1].sendall(answer(2, only_page(parts[1])))
    others[1].close()
    reader.begin(4, 20.0)
    assert (reader.read(), reader.next, reader.link) == (RowsEnd.CLOSED, 3, 1)
    assert isinstance(answers[1].failure(RowsEnd.CLOSED), ConnectionResetError)
    assert [one.next for one in answers] == [2, 1]
    others[0].close()


def test_a_connection_that_is_silent_or_trickles_ends_with_a_timeout(sockets):
    """Whatever the others have sent meanwhile."""
    rng = np.random.default_rng(2)
    schema, parts = units_of(rng, 3)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    others, stop = socket.socketpair(), threading.Event()
    others[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    late = answer(2, only_page(parts[1]))

    def trickle():
        for byte in late:
            if stop.wait(0.02):
                return
            others[1].send(bytes([byte]))

    for sends in (False, True):
        sockets[1].sendall(answer(0, only_page(parts[0])) + answer(1, only_page(parts[2])))
        answers = [answers_over(sockets[0], True), answers_over(others[0], True, limit_s=0.2)]
        reader = UnitReader(builder_for(schema, registry, 640, entries), answers)
        answers[0].expect([0, 1])
        answers[1].expect([2])
        reader.expect(np.array([0, 1, 0], np.int32))
        reader.begin(3, 20.0)
        thread = threading.Thread(target=trickle, daemon=True)
        if sends:
            thread.start()
        assert (reader.read(), reader.next, reader.link) == (RowsEnd.FAILED, 1, 1)
        assert isinstance(answers[1].failure(RowsEnd.FAILED), TimeoutError)
        stop.set()
    thread.join()
    for sock in others:
        sock.close()


SPECIAL = {
    "an error": lambda n, part: answer(n, b"\x01\0\0\0", flags=1),
    "another page": lambda n, part: answer(n, only_page(part, more=1)),
    "fewer entries": lambda n, part: answer(n, only_page([]) + bytes(9)),
    "a topology": lambda n, part: answer(n, bytes(12) + only_page(part), flags=2),
    "a damaged page": lambda n, part: answer(n, only_page(part)[:-7]),
}


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("what", SPECIAL)
def test_what_is_no_only_page_is_given_back_whole(sockets, own, what):
    """And so are the answers that came early, and the bytes behind them."""
    rng = np.random.default_rng(3)
    schema, parts = units_of(rng, 12)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], own)
    expecting(answers, reader, list(range(12)))
    frames = [answer(n, only_page(part)) for n, part in enumerate(parts)]
    frames[5] = SPECIAL[what](5, parts[5])
    stream = b"".join([*frames[:3], frames[8], *frames[3:7], frames[11], frames[9][:20]])
    sockets[1].sendall(stream)
    end, taken = read_all(reader, answers, 12, sockets[0], own)
    assert end is RowsEnd.OTHER
    assert len(taken) == 5
    given, rest = answers.rest()
    found = b"".join(struct.pack("<i", len(frame)) + bytes(frame) for _, frame in given)
    left = found + bytes(rest) + received_by_now(sockets[0])
    remaining = b"".join([frames[8], *frames[5:7], frames[11], frames[9][:20]])
    assert sorted(split(left)) == sorted(split(remaining))
    assert sum(map(len, builder.take())) == sum(map(len, parts[:5]))


def received_by_now(sock):
    sock.setblocking(False)
    try:
        return sock.recv(1 << 20)
    except BlockingIOError:
        return b""


def split(stream):
    """The answers in a stream, the last of which may be cut."""
    found = []
    while stream:
        end = 4 + struct.unpack_from("<i", stream)[0]
        found.append(stream[:end])
        stream = stream[end:]
    return found


def test_units_end_where_they_shall(sockets):
    rng = np.random.default_rng(4)
    schema, parts = units_of(rng, 40)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], True)
    expecting(answers, reader, list(range(40)))
    thread = dripping(
        sockets[1], b"".join(answer(n, only_page(p)) for n, p in enumerate(parts)), rng
    )
    reader.begin(7, 20.0)
    while (end := reader.read()) is RowsEnd.FULL:
        reader.begin(7, 20.0)
    assert (end, reader.next) == (RowsEnd.END, 7)
    assert sum(map(len, builder.take())) == counts_of(parts[:7]).sum()
    while end is not RowsEnd.END or reader.next < 40:
        first = reader.next
        reader.begin(40, 20.0)
        end = reader.read()
        assert end in (RowsEnd.FULL, RowsEnd.END)
        rows = counts_of(parts[first : reader.next])
        assert reader.taken(first, reader.next)["rows"].tolist() == rows.tolist()
        # Memory that is full has whole units.
        assert sum(map(len, builder.take())) == rows.sum()
    thread.join()


def read_with(reader, answers, data):
    """Read units from these bytes; returns how that ended."""
    left = memoryview(data)

    def receive(view):
        nonlocal left
        here, left = left[: len(view)], left[len(view) :]
        view[: len(here)] = here
        return len(here)

    while (end := reader.read()) is RowsEnd.BYTES and left:
        answers.received(receive)
    return end


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 2, 0], [0, 2, 1, 3]])
def test_units_before_their_turn_are_placed_and_not_given_back(sockets, order):
    rng = np.random.default_rng(4)
    schema, parts = units_of(rng, 4, FIXED)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], False)
    expecting(answers, reader, list(range(4)), rows=counts_of(parts))
    for number, unit in enumerate(order):
        here = order[: number + 1]
        end = read_with(reader, answers, answer(unit, only_page(parts[unit])))
        taken = next((n for n in range(4) if n not in here), 4)
        assert (reader.next, end is RowsEnd.END) == (taken, taken == 4)
        assert answers.placed.tolist() == sorted(n for n in here if n > taken)
        assert reader.has_placed == bool(len(answers.placed))
    same(concat(list(builder.take())), Decoder(schema, registry).decode(page_of(entries)))
    expecting(answers, reader, list(range(4)), rows=counts_of(parts))
    read_with(reader, answers, answer(2, only_page(parts[2])) + answer(1, b"", flags=1))
    assert answers.placed.tolist() == [2]
    given, rest = answers.rest()
    assert ([request for request, _ in given], len(rest)) == ([1], 0)


@pytest.mark.parametrize("seed", range(12))
def test_another_number_of_rows_than_was_known_ends_what_was_placed(sockets, seed):
    """Or makes no difference: whatever has been taken is right."""
    rng = np.random.default_rng(seed)
    schema, parts = units_of(rng, 30, FIXED)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 6400, entries, sockets[0], True)
    known, other = counts_of(parts), int(rng.integers(5, 25))
    known[other] += int(rng.choice([-1, 1, 700]))
    expecting(answers, reader, list(range(30)), rows=known)
    order = np.argsort(np.arange(30) + rng.integers(0, 1 + 5 * (seed % 3), 30))
    order = order[::-1] if seed < 3 else order
    stream = b"".join(answer(n, only_page(parts[n])) for n in order.tolist())
    thread = dripping(sockets[1], stream, rng)
    end, taken = read_all(reader, answers, 30, sockets[0], True)
    if end is RowsEnd.COUNT:
        assert (reader.next, reader.has_placed) == (other, True)
    else:
        assert (end, reader.next) == (RowsEnd.END, 30)
    assert end is RowsEnd.COUNT or seed >= 3
    here = parts[: reader.next]
    assert [unit[0] for unit in taken] == list(map(len, here))
    page = page_of([entry for part in here for entry in part])
    same(concat(list(builder.take())), Decoder(schema, registry).decode(page))
    received_by_now(sockets[0]), sockets[1].close(), thread.join()


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
def test_units_that_are_here_are_not_held_back_for_long(sockets, own):
    rng = np.random.default_rng(4)
    schema, parts = units_of(rng, 4)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    _, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], own)
    expecting(answers, reader, list(range(4)))
    for number, part in enumerate(parts):
        sockets[1].sendall(answer(number, only_page(part)))
        reader.begin(4, 0.0)
        while (end := reader.read()) is RowsEnd.BYTES:
            answers.received(sockets[0].recv_into)
        assert (end, reader.next) == (RowsEnd.END if number == 3 else RowsEnd.ENOUGH, number + 1)


class Answering(threading.Thread):
    """Answers requests of `REQUEST_BYTES` in any order, the late ones when nothing else is asked.

    Keeps the ids as they came, and how many had no answer, and were not yet taken, at the most.
    """

    def __init__(self, sock, answers, rng, late):
        super().__init__(daemon=True)
        self.sock, self.answers, self.rng, self.late = sock, answers, rng, late
        self.seen, self.unanswered, self.held = [], 0, 0

    def run(self):
        waiting, here = [], b""
        while len(self.seen) < len(self.answers) or waiting:
            ready = [number for number in waiting if number not in self.late]
            here += self.received(0.0 if ready else 0.02)
            while len(here) >= REQUEST_BYTES:
                (number,) = struct.unpack_from("<q", here)
                here = here[REQUEST_BYTES:]
                waiting.append(number)
                self.seen.append(number)
                self.unanswered = max(self.unanswered, len(waiting))
                self.held = max(self.held, number + 1 - min(waiting))
            if waiting:
                number = int(self.rng.choice(ready or waiting))
                waiting.remove(number)
                self.sock.settimeout(20)
                self.sock.sendall(self.answers[number])

    def received(self, limit_s):
        self.sock.settimeout(limit_s)
        try:
            return self.sock.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return b""


REQUEST_BYTES = 13


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("asked", [0, 3])
@pytest.mark.parametrize("late", [(), (0,), (4, 20, 21)])
@pytest.mark.parametrize("depth", [Depth(5, 9, 14), Depth(0, 1, 1), Depth(60, 80, 200)])
def test_units_are_asked_for_once_in_order_and_as_many_as_allowed(sockets, own, asked, late, depth):
    rng = np.random.default_rng(len(late) + asked)
    schema, parts = units_of(rng, 60)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], own, depth)
    frames = [struct.pack("<q", 100 + n) + bytes(REQUEST_BYTES - 8) for n in range(60)]
    sockets[0].sendall(b"".join(frames[:asked]))
    expecting(
        answers,
        reader,
        list(range(100, 100 + asked)),
        range(100 + asked, 160),
        b"".join(frames[asked:]),
    )
    given = {100 + n: answer(100 + n, only_page(part)) for n, part in enumerate(parts)}
    node = Answering(sockets[1], given, rng, {100 + n for n in late})
    node.start()
    end, taken = read_all(reader, answers, 60, sockets[0], own)
    node.join(20)
    assert not node.is_alive()
    assert end is RowsEnd.END
    assert node.seen == list(range(100, 160))
    assert [unit[0] for unit in taken] == list(map(len, parts))
    assert node.unanswered <= max(depth.pipelined, asked)
    assert node.held <= max(depth.held, asked)
    same(concat(list(builder.take())), Decoder(schema, registry).decode(page_of(entries)))


def test_a_late_unit_leaves_the_node_with_work(sockets):
    """Answers that wait for it make room for further requests, up to `held`."""
    rng = np.random.default_rng(8)
    schema, parts = units_of(rng, 60)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    _, answers, reader = reader_of(
        schema, registry, 640, entries, sockets[0], False, Depth(5, 9, 30)
    )
    frames = b"".join(struct.pack("<q", n) for n in range(60))
    expecting(answers, reader, [], range(60), frames)
    seen = 0
    while seen < 30:
        end = reader.read()
        assert not reader.next
        if end is RowsEnd.BYTES:  # all but the first one are answered
            assert answers.asked > seen
            for n in range(max(1, seen), answers.asked):
                sockets[1].sendall(answer(n, only_page(parts[n])))
            seen = answers.asked
            answers.received(sockets[0].recv_into)
        else:
            assert end is RowsEnd.ASK
            assert len(answers.due()) % 8 == 0
    assert answers.asked == 30


@pytest.mark.parametrize("what", [None, *SPECIAL])
def test_answers_that_came_before_are_taken_and_given_back_whole(sockets, what):
    rng = np.random.default_rng(10)
    schema, parts = units_of(rng, 6)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], True)
    frames = [answer(n, only_page(part)) for n, part in enumerate(parts)]
    if what is not None:
        frames[2] = SPECIAL[what](2, parts[2])
    expecting(answers, reader, list(range(6)))
    for n in (1, 2, 4):
        answers.give(n, memoryview(frames[n])[4:])
    sockets[1].sendall(b"".join(frames[n] for n in (3, 0, 5)))
    end, taken = read_all(reader, answers, 6, sockets[0], True)
    count = 6 if what is None else 2
    assert end is (RowsEnd.END if what is None else RowsEnd.OTHER)
    assert len(taken) == count
    assert sum(map(len, builder.take())) == sum(map(len, parts[:count]))
    given, rest = answers.rest()
    found = {n: bytes(frame) for n, frame in given}
    left = split(bytes(rest) + received_by_now(sockets[0]))
    assert all(found[n] == frames[n][4:] for n in found)
    assert sorted([*found, *(frames.index(one) for one in left)]) == list(range(count, 6))


def test_cursors_that_are_open_count_as_unanswered(sockets):
    """A connection may have 128 of them, also of units that wait for one that is late."""
    rng = np.random.default_rng(9)
    schema, parts = units_of(rng, 60)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    _, answers, reader = reader_of(
        schema, registry, 640, entries, sockets[0], False, Depth(5, 9, 30)
    )
    expecting(answers, reader, [], range(60), b"".join(struct.pack("<q", n) for n in range(60)))
    assert reader.read() is RowsEnd.ASK
    assert len(answers.due()) == 9 * 8
    for n in range(1, 9):
        sockets[1].sendall(answer(n, only_page(parts[n], more=1)))
    while (end := reader.read()) is RowsEnd.BYTES and answers.asked == 9:
        sockets[0].settimeout(0.2)
        try:
            answers.received(sockets[0].recv_into)
        except TimeoutError:
            break
    assert (end, answers.asked) == (RowsEnd.BYTES, 9)


def test_an_answer_that_nobody_waits_for_is_told(sockets):
    rng = np.random.default_rng(5)
    schema, parts = units_of(rng, 4)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    for request in (9, 0):  # unknown, and twice
        _, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], True)
        expecting(answers, reader, list(range(4)))
        sockets[1].sendall(answer(0, only_page(parts[0])) + answer(request, only_page(parts[0])))
        end, taken = read_all(reader, answers, 4, sockets[0], True)
        assert (end, len(taken)) == (RowsEnd.UNKNOWN, 1)


def test_units_without_entries_are_taken_too(sockets):
    rng = np.random.default_rng(6)
    schema, parts = units_of(rng, 4)
    parts[0], parts[2] = [], []
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    builder, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], True)
    expecting(answers, reader, list(range(4)))
    for n in (1, 0, 3, 2):
        sockets[1].sendall(answer(n, only_page(parts[n])))
    end, taken = read_all(reader, answers, 4, sockets[0], True)
    assert (end, [unit[0] for unit in taken]) == (RowsEnd.END, list(map(len, parts)))
    assert taken[0][1] == taken[2][1] == zlib.crc32(b"")
    assert sum(map(len, builder.take())) == len(entries)


def test_a_large_answer_is_left_on_the_connection(sockets):
    rng = np.random.default_rng(6)
    schema, parts = units_of(rng, 4)
    registry, entries = registry_of(schema), [entry for part in parts for entry in part]
    _, answers, reader = reader_of(schema, registry, 640, entries, sockets[0], True)
    expecting(answers, reader, list(range(4)))
    large = answer(1, bytes(SMALL))
    sockets[1].sendall(answer(0, only_page(parts[0])) + large)
    end, taken = read_all(reader, answers, 4, sockets[0], True)
    assert (end, len(taken)) == (RowsEnd.LARGE, 1)
    assert bytes(answers.rest()[1]) + received_by_now(sockets[0]) == large


LARGE = {
    "blobs": ["JPEG", "LABEL", "NAME"],
    "blobs last": ["LABEL", "JPEG"],
    "arrays of one length": ["PIXELS", "LABEL"],
    "arrays last": ["LABEL", "PIXELS"],
    "two": ["JPEG", "PIXELS", "WEIGHT", "NAME"],
    "lists": ["ITEMS", "NAME"],
}


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("what", LARGE)
@pytest.mark.parametrize("room", [1, 5, 64])
def test_large_values_are_received_into_their_place(sockets, own, what, room):
    rng = np.random.default_rng(len(what))
    schema, entries = large_rows(rng, LARGE[what], 40)
    registry, page = registry_of(schema), page_of(entries)
    builder = builder_of(schema, registry, room, page)
    reader = PageReader(builder, BufferPool(), builder.learn)
    for _ in range(2):  # once the form is known, too
        thread = dripping(sockets[1], page.data.tobytes(), rng)
        found = reader.read(Arrival(sockets[0], b"", own), len(page.data), page.count)
        thread.join()
        assert found == (40, None)
        same(concat(list(builder.take())), Decoder(schema, registry).decode(page))


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("damage", ["length", "footer", "size", "code", "cut"])
def test_what_is_wrong_around_a_large_value_is_left_as_it_came(sockets, own, damage):
    rng = np.random.default_rng(3)
    schema, entries = large_rows(rng, ["LABEL", "PIXELS", "NAME"], 6)
    registry = registry_of(schema)
    builder = builder_of(schema, registry, 64, page_of(entries))
    builder.learn(np.frombuffer(entries[0], np.uint8))
    reader = PageReader(builder, BufferPool(), lambda entry: False)
    row = bytearray(entries[4])
    at = {"length": 14 + 12, "size": 10, "code": 14 + 24, "footer": len(row) - 6, "cut": 0}[damage]
    row[at] ^= 1 if damage != "cut" else 0
    entries[4] = bytes(row)
    data = b"".join(entries)
    data = data[: len(data) - 100_000] if damage == "cut" else data
    thread = dripping(sockets[1], data + b"next", rng)
    arrival = Arrival(sockets[0], b"", own)
    rows, rest = reader.read(arrival, len(data), 6)
    thread.join()
    taken = 5 if damage == "cut" else 4
    assert rows == taken
    assert rest.tobytes() == b"".join(entries[taken:])[: len(rest)]
    assert len(rest) == len(data) - sum(map(len, entries[:taken]))
    assert received_by_now(sockets[0]) == b"next"
    assert sum(map(len, builder.take())) == taken


def large_rows(rng, names, rows):
    fields = {f.name: f for f in FIELDS} | {
        "PIXELS": field_for("PIXELS", np.dtype("u1"), (300, 400))
    }
    schema = Schema("Row", LONG_KEY, tuple(fields[name] for name in names))
    columns = columns_of(rows, rng)
    lengths = rng.choice([0, 9, 70_000, 300_000], rows)
    columns["JPEG"] = Column.from_bytes([rng.bytes(int(n)) for n in lengths])
    columns["PIXELS"] = Column(rng.integers(0, 256, (rows, 300, 400), dtype=np.uint8))
    counts = rng.choice([0, 3, 20_000], rows)
    columns["ITEMS"] = Column.from_offsets(
        rng.integers(0, 1 << 60, int(counts.sum())), np.concatenate(([0], np.cumsum(counts)))
    )
    batch = Batch(keys_of(LONG_KEY, rows, rng), {name: columns[name] for name in names})
    return schema, entries_of(schema, batch)


DENSE = (
    field_for("IMAGE", np.dtype("u1"), (100_000,)),
    field_for("LABEL", np.dtype("<i4")),
)


def dense_rows(rng, rows):
    """A schema, the page of so many rows in any order, and the rows in the order of their keys."""
    schema = Schema("Row", LONG_KEY, DENSE)
    keys = np.sort(rng.choice(np.array([-(2**62), -7, -1, 0, 1, 2, 5, 9, 2**40]), rows, False))
    image = rng.integers(0, 256, (rows, 100_000), dtype=np.uint8)
    columns = {"IMAGE": Column(image), "LABEL": Column(np.arange(rows, dtype=np.int32))}
    batch = Batch(Column(keys), columns)
    entries = entries_of(schema, batch)
    return schema, page_of([entries[i] for i in rng.permutation(rows)]), batch


def receive(sockets, rng, builder, page, aimed, here=0, own=True):
    """Receive an answer into the rows aimed at, of which the first bytes are here already."""
    reader = PageReader(builder, BufferPool(), builder.learn)
    data = page.data.tobytes()
    thread = dripping(sockets[1], data[here:], rng)
    builder.aim(*aimed)
    found = reader.read(Arrival(sockets[0], data[:here], own), len(data), page.count)
    thread.join()
    return found


@pytest.mark.parametrize("own", [True, False], ids=["own socket", "no socket"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_asked_for_go_to_their_places_in_whatever_order_they_come(sockets, own, seed):
    rng = np.random.default_rng(seed)
    schema, page, batch = dense_rows(rng, 1 + seed)
    registry, rows, first = registry_of(schema), len(batch), int(rng.integers(0, 3))
    builder = builder_of(schema, registry, 0, page)
    memory = builder.memory_for(BufferPool(), first + rows + 2)
    aimed, here = (memory, first, batch.key.values), int(rng.integers(0, 50_000))
    assert receive(sockets, rng, builder, page, aimed, here, own) == (rows, None)
    same(builder.batch_of(memory, first + rows)[first:], batch)


def test_a_row_that_does_not_come_has_another_key(sockets):
    """Memory that is used again has the keys of the epoch before."""
    rng = np.random.default_rng(3)
    schema, page, batch = dense_rows(rng, 4)
    entries = entries_of(schema, batch)
    builder = builder_of(schema, registry_of(schema), 0, page)
    memory = builder.memory_for(BufferPool(), 4)

    def read(*numbers):
        answer = page_of([entries[i] for i in numbers])
        return receive(sockets, rng, builder, answer, (memory, 0, batch.key.values))

    for wrong in ([0, 1, 3], [0, 1, 1, 3], [3, 0, 0, 0]):
        assert read(0, 1, 2, 3) == (4, None)
        same(builder.batch_of(memory, 4), batch)
        assert read(*wrong) == (len(wrong), None)
        there = builder.batch_of(memory, 4).key.values == batch.key.values
        assert there.tolist() == [i in wrong for i in range(4)]


def test_a_row_with_another_key_does_not_leave_the_rows_asked_for(sockets):
    rng = np.random.default_rng(4)
    schema, page, batch = dense_rows(rng, 5)
    entries = entries_of(schema, batch)
    builder = builder_of(schema, registry_of(schema), 0, page)
    memory = builder.memory_for(BufferPool(), 5)
    before = [np.full_like(column.values, 7) for column in batch.columns.values()]
    for column, values in zip(builder.batch_of(memory, 5).columns.values(), before, strict=True):
        column.values[:] = values
    answer = page_of([entries[2], entries[4]])
    aimed = memory, 1, batch.key.values[1:3]  # of which only the second comes
    rows, rest = receive(sockets, rng, builder, answer, aimed)
    assert (rows, rest.tobytes()) == (1, entries[4])  # for which there is no room
    found = builder.batch_of(memory, 5)
    for name, values in zip(found.columns, before, strict=True):
        column = found.columns[name].values
        np.testing.assert_array_equal(column[[0, 1, 3, 4]], values[[0, 1, 3, 4]])
        np.testing.assert_array_equal(column[2], batch.columns[name].values[2])
