"""Who gives up answers does not reset the connection, for which a node sleeps a second."""

import contextlib
import socket
import threading
import time

import numpy as np
import pytest
from helpers.distant import Distant

from ignitetf import dbapi
from ignitetf.load.loader import load_dataset
from ignitetf.net import channel
from ignitetf.net.client import connect
from ignitetf.read.rows import open_rows

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def table(client):
    name = "PARTING"
    rows = {"IMAGE": np.zeros((40_000, 784), np.uint8), "LABEL": np.arange(40_000, dtype="i4")}
    load_dataset(rows, name, client=client, partitions=4, if_exists="replace")
    yield name
    client.sql(f"DROP TABLE IF EXISTS {name}")


def give_up_an_epoch(settings, table, **options):
    with connect(settings=settings) as client:
        batches = open_rows(table, client=client, shard=(0, 1), **options).batches()
        next(batches)
        batches.close()


def give_up_a_statement(settings, table):
    (address,) = settings.addresses
    with dbapi.connect(address) as connection:
        cursor = connection.execute(f"SELECT * FROM {table}")
        cursor.fetchone()
        cursor.close()


def forget_a_statement(settings, table):
    (address,) = settings.addresses
    with dbapi.connect(address) as connection:
        connection.execute(f"SELECT * FROM {table}").fetchone()


def give_up_requests(settings, table):
    with connect(settings=settings) as client:
        found = client.acquire()
        for _ in range(50):
            found.send(1050)  # the names of all caches
        found.close()


def cancel_a_statement(settings, table):
    (address,) = settings.addresses
    with dbapi.connect(address, page_rows=8) as connection:
        endless = f"SELECT A.* FROM {table} A, SYSTEM_RANGE(1, 100000) B"
        cursor = connection.execute(endless)
        timer = threading.Timer(0.1, cursor.cancel)
        timer.start()
        with pytest.raises(dbapi.OperationalError):
            cursor.fetchall()
        timer.join()


def settled():
    for thread in list(channel._parting):
        thread.join(30)


WAYS = [
    give_up_an_epoch,
    give_up_a_statement,
    forget_a_statement,
    give_up_requests,
    cancel_a_statement,
]


@pytest.mark.parametrize("give_up", WAYS)
def test_a_connection_is_not_reset(client, table, give_up):
    with Distant(client.settings.addresses[0], 0.001) as proxy:
        settings = client.settings.replace(addresses=(proxy.address,))
        for _ in range(3):
            give_up(settings, table)
            settled()
        assert proxy.connections >= 3
        assert proxy.resets == 0


def test_the_check_sees_a_reset(client, table, monkeypatch):
    monkeypatch.setattr(channel, "part", socket.socket.close)
    with Distant(client.settings.addresses[0], 0.001) as proxy:
        settings = client.settings.replace(addresses=(proxy.address,))
        # Else all of an epoch may have come, on a busy machine, before it is given up.
        settings = settings.replace(ahead_bytes=0)
        # A node that has just started is slow: nothing may be on its way when the first are given up.
        until = time.monotonic() + 30
        while not proxy.resets and time.monotonic() < until:
            give_up_an_epoch(settings, table, readers=1)
            time.sleep(0.01)
        assert proxy.resets > 0


def test_a_node_that_does_not_close_its_side_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(channel, "_PARTING_S", 0.2)
    ours, other = socket.socketpair()
    with contextlib.closing(other):
        other.sendall(bytes(1000))
        channel.part(ours)
        settled()
        assert ours.fileno() == -1
        assert other.recv(10) == b""


def test_what_is_lost_already_is_closed():
    ours, other = socket.socketpair()
    other.close()
    ours.close()
    channel.part(ours)
    settled()
    assert ours.fileno() == -1
