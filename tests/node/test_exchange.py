"""Requests under way: all are answered, once or as often as is harmless, whatever happens to the link."""

import contextlib
import itertools
import socket
import threading
import time

import numpy as np
import pytest
from helpers.distant import Distant

from ignitetf.errors import ConnectError, RequestTimeout, ServerError, ServerOverloaded
from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.net.channel import Channel
from ignitetf.net.client import cache_id, connect
from ignitetf.net.exchange import Exchange
from ignitetf.net.statements import run_batch
from ignitetf.wire.answers import read_sized
from ignitetf.wire.codes import OpCode
from ignitetf.wire.requests import cache_request, encode_bytes, encode_string

pytestmark = pytest.mark.node
HEAP = "Java heap space"


@pytest.fixture
def cache(client, cache_name):
    client.pyignite.get_or_create_cache(cache_name)
    yield cache_name
    client.destroy_cache(cache_name)


class Unsteady(Distant):
    """A link whose delay changes all the time, and which can be cut."""

    def __init__(self, target, delays):
        self._delays = itertools.cycle(delays)
        super().__init__(target, 0.0)

    @property
    def delay_s(self):
        return next(self._delays)

    @delay_s.setter
    def delay_s(self, _):
        pass

    def cut(self):
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def unsteady(client):
    with Unsteady(client.settings.addresses[0], (0.0, 0.03, 0.001, 0.01)) as proxy:
        yield proxy


@pytest.fixture
def link(client, unsteady):
    with connect(settings=client.settings.replace(addresses=(unsteady.address,))) as found:
        yield found


def put(cache, number, size):
    value = encode_bytes(number.to_bytes(4, "little") * (size // 4))
    return cache_request(cache_id(cache), encode_string(f"k{number}"), value)


def get(cache, number):
    return cache_request(cache_id(cache), encode_string(f"k{number}"))


def put_and_get(client, cache, count, size, *, between=lambda number: None):
    """Put values and get them again; returns what came back by number."""
    answered, found = [], {}
    puts = Exchange(client, lambda number, _: answered.append(number))
    gets = Exchange(client, lambda number, body: found.update({number: read_sized(body, "x")[1]}))
    with contextlib.closing(puts), contextlib.closing(gets):
        for number in range(count):
            puts.send(number, OpCode.CACHE_PUT, put(cache, number, size))
            between(number)
        puts.finish()
        for number in range(count):
            gets.send(number, OpCode.CACHE_GET, get(cache, number), expects=size)
            between(number)
        gets.finish()
        assert len(puts) == len(gets) == 0
    assert sorted(answered) == list(range(count))
    return {number: bytes(value) for number, value in found.items()}


def as_put(count, size):
    return {number: number.to_bytes(4, "little") * (size // 4) for number in range(count)}


@pytest.mark.parametrize(("count", "size"), [(500, 40), (40, 1 << 20)])
def test_all_is_answered_once_over_a_link_of_varying_delay(link, cache, count, size):
    assert put_and_get(link, cache, count, size) == as_put(count, size)


def test_what_a_lost_connection_took_along_is_sent_again(link, unsteady, cache):
    def cut(number):
        if number % 10 == 5:
            unsteady.cut()

    assert put_and_get(link, cache, 40, 1 << 20, between=cut) == as_put(40, 1 << 20)


@pytest.mark.parametrize("ahead_bytes", [0, 3 << 20, 128 << 20])
def test_no_more_is_under_way_than_the_limit_and_a_request(client, unsteady, cache, ahead_bytes):
    settings = client.settings.replace(addresses=(unsteady.address,), ahead_bytes=ahead_bytes)
    with connect(settings=settings) as own:
        under_way, taken = set(), []
        puts = Exchange(own, lambda n, _: under_way.discard(n))
        with contextlib.closing(puts):
            for number in range(60):
                puts.send(number, OpCode.CACHE_PUT, put(cache, number, 1 << 20))
                under_way.add(number)
                taken.append(len(under_way))
            puts.finish()
    assert max(taken) <= (ahead_bytes >> 20) + 1


def refusing(monkeypatch, refused):
    """Have values refused, by a function of the number of the answer."""
    send, receive = Channel.send, Channel.receive_any
    numbers, lock, values = itertools.count(), threading.Lock(), set()

    def watched(self, op, *buffers):
        number = send(self, op, *buffers)
        if op in (OpCode.CACHE_PUT, OpCode.CACHE_PUT_ALL) and sum(map(len, buffers)) > 1 << 16:
            values.add((self, number))
        return number

    def refusing_some(self, **options):
        number, answer = receive(self, **options)
        if (self, number) not in values:
            return number, answer
        with lock:
            place = next(numbers)
        text = refused(place)
        return number, ServerOverloaded(text, server_message=text) if text else answer

    monkeypatch.setattr(Channel, "send", watched)
    monkeypatch.setattr(Channel, "receive_any", refusing_some)


def test_what_a_node_had_no_heap_for_is_sent_again(client, cache, monkeypatch):
    refusing(monkeypatch, lambda place: HEAP if place % 9 in (3, 4) else None)
    assert put_and_get(client, cache, 30, 1 << 20) == as_put(30, 1 << 20)


def test_a_node_that_never_has_heap_is_told(client, cache, monkeypatch):
    refusing(monkeypatch, lambda place: HEAP if place > 5 else None)
    with pytest.raises(ServerOverloaded, match=HEAP):
        put_and_get(client, cache, 20, 1 << 20)


def test_a_load_goes_on_when_a_node_has_no_heap_for_a_while(client, cache_name, monkeypatch):
    rows = {"X": np.random.default_rng(0).integers(0, 256, (60, 1 << 19), np.uint8)}
    refusing(monkeypatch, lambda place: HEAP if place in (2, 3) else None)
    report = load_dataset(rows, cache_name, client=client, partitions=8)
    assert report.rows == 60 and verify(client, cache_name).ok


def test_a_silent_node_ends_the_wait_and_loses_the_connection(client, cache):
    with Distant(client.settings.addresses[0], 0.0) as proxy:
        settings = client.settings.replace(addresses=(proxy.address,), request_timeout_s=1.0)
        with connect(settings=settings) as own:
            puts = Exchange(own, lambda number, _: None)
            puts.send(0, OpCode.CACHE_PUT, put(cache, 0, 40))
            puts.finish()
            proxy.delay_s = 60.0
            begin = time.monotonic()
            with pytest.raises(RequestTimeout) as told, contextlib.closing(puts):
                puts.send(1, OpCode.CACHE_PUT, put(cache, 1, 40))
                puts.finish()
            assert 0.9 < time.monotonic() - begin < 20
            assert isinstance(told.value.__cause__, OSError)
            assert own.idle_count == 0


def test_an_error_of_one_request_comes_when_it_is_answered(client, cache):
    puts = Exchange(client, lambda number, _: None)
    with contextlib.closing(puts), pytest.raises(ServerError):
        puts.send(0, OpCode.CACHE_PUT, put("NOWHERE", 0, 40))
        puts.finish()


def test_statements_are_never_run_twice(client, link, unsteady, cache_name):
    client.sql(f"CREATE TABLE {cache_name} (ID INT PRIMARY KEY, N INT)").close()
    try:
        insert = f"INSERT INTO {cache_name} VALUES (?, 0)"
        options = {"schema": "PUBLIC", "timeout_s": None}
        assert run_batch(link, insert, [(n,) for n in range(3000)], **options) == 3000
        count = f"UPDATE {cache_name} SET N = N + 1 WHERE ID = ?"

        def rows():
            for number in range(3000):
                if number == 2500:
                    unsteady.cut()
                yield (number,)

        with pytest.raises(ConnectError):
            run_batch(link, count, rows(), **options)
        (most,) = client.sql(f"SELECT MAX(N) FROM {cache_name}").fetchall()[0]
        assert most == 1
    finally:
        client.sql(f"DROP TABLE {cache_name}").close()


def test_a_failed_statement_is_told_with_those_under_way_done(client, cache_name):
    client.sql(f"CREATE TABLE {cache_name} (ID INT PRIMARY KEY, N INT)").close()
    try:
        options = {"schema": "PUBLIC", "timeout_s": None}
        keys = [(7 if n == 20 else n,) for n in range(50)]
        with pytest.raises(ServerError, match="already in cache"):
            run_batch(client, f"INSERT INTO {cache_name} VALUES (?, 0)", keys, **options)
        (rows,) = client.sql(f"SELECT COUNT(*) FROM {cache_name}").fetchall()[0]
        assert 20 <= rows <= 49
    finally:
        client.sql(f"DROP TABLE {cache_name}").close()


def test_a_load_over_an_unsteady_link_that_is_cut_is_complete(client, link, unsteady, cache_name):
    rows = {"X": np.random.default_rng(0).integers(0, 256, (60, 1 << 18), np.uint8)}
    cuts = iter((10, 30))
    at = next(cuts)
    done = 0

    def progress(count, nbytes):
        nonlocal at, done
        done += count
        if at is not None and done >= at:
            unsteady.cut()
            at = next(cuts, None)

    records = [{"X": rows["X"][n]} for n in range(60)]
    report = load_dataset(records, cache_name, client=link, partitions=8, on_progress=progress)
    assert report.rows == 60 and client.cache_size(cache_name) == 60
