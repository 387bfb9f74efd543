"""Calls at once: one connection, one round trip, each with its own answer or error."""

import time

import pytest
from helpers.distant import Distant
from helpers.round_trips import counted

from ignitetf.errors import CacheNotFound, RequestTimeout, SqlError
from ignitetf.net.client import connect

pytestmark = pytest.mark.node


@pytest.fixture
def proxy(client):
    with Distant(client.settings.addresses[0], 0.02) as found:
        yield found


@pytest.fixture
def far(client, proxy):
    settings = client.settings.replace(addresses=(proxy.address,), request_timeout_s=10.0)
    with connect(settings=settings) as found:
        yield found


def numbers(client, count):
    """Ask for numbers by SQL, each in several pages."""

    def ask(first):
        text = "SELECT X FROM SYSTEM_RANGE(?, ?)"
        return [x for (x,) in client.sql(text, (first, first + 99), page_size=40).fetchall()]

    return client.at_once(*(lambda n=n: ask(n) for n in range(count)))


def test_each_call_has_its_own_rows(client, far):
    for one in (client, far):
        assert numbers(one, 6) == [list(range(n, n + 100)) for n in range(6)]


def test_they_share_a_connection_and_a_round_trip(far, proxy, monkeypatch):
    names = far.cache_names()
    before = proxy.connections
    with counted(monkeypatch) as trips:
        found = far.at_once(*[far.cache_names] * 5, lambda: far.at_once(*[far.cache_names] * 2))
    assert found == [*[names] * 5, [names] * 2]
    assert trips.count == 1 and proxy.connections == before


def test_the_first_error_in_their_order_is_raised_when_all_have_ended(client):
    ended = []

    def late():
        time.sleep(0.2)
        ended.append(client.cache_names())

    with pytest.raises(CacheNotFound):
        client.at_once(
            client.cache_names,
            lambda: client.cache_size("NOWHERE"),
            lambda: client.sql("SELECT NOTHING FROM NOWHERE"),
            late,
        )
    assert len(ended) == 1
    with pytest.raises(SqlError):
        client.at_once(lambda: client.sql("SELECT NOTHING FROM NOWHERE"), client.cache_names)
    assert client.at_once(client.cache_names, lambda: 7)[1] == 7


def test_what_only_reads_is_asked_again_when_the_connection_is_lost(client):
    target = client.settings.addresses[0]
    with (
        Distant(target, 0.1) as proxy,
        connect(settings=client.settings.replace(addresses=(proxy.address, target))) as own,
    ):
        names = client.cache_names()

        def lose():
            time.sleep(0.05)
            proxy.__exit__()
            return own.cache_names()

        assert own.at_once(own.cache_names, lose, own.cache_names) == [names] * 3


def test_a_silent_node_ends_all_of_them_in_time_and_is_held_by_none(client, proxy):
    settings = client.settings.replace(
        addresses=(proxy.address,), request_timeout_s=0.5, idle_timeout_s=0.5
    )
    with connect(settings=settings) as own:
        proxy.delay_s = 60.0
        begin = time.monotonic()
        with pytest.raises(RequestTimeout, match="no answer within"):
            own.at_once(*[own.cache_names] * 4)
        assert time.monotonic() - begin < 10
        assert own.idle_count == 0
