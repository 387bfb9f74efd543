"""A transaction of the file system happens as a whole or not at all, however its client ends."""

import contextlib
import itertools
import threading

import pytest
from helpers.stores import new_store

from ignitetf.errors import ConnectError
from ignitetf.fs.check import check
from ignitetf.fs.meta import Transaction
from ignitetf.fs.store import Store

pytestmark = pytest.mark.node


@pytest.fixture
def store(client):
    with new_store(client, 4096) as made:
        yield made


def read(store, path):
    with contextlib.closing(store.open_read(path)) as file:
        return file.read(0, file.size)


def keys(store):
    """Return the keys of the tests as whoever reads beside the module finds them."""
    rows = store.client.sql(
        f"SELECT K FROM \"{store.meta.name}\".ENTRY WHERE K LIKE 'x%' ORDER BY K"
    )
    return [key for (key,) in rows.fetchall()]


def move(transaction):
    transaction.lock(["from", "to", "note"])
    transaction.put({"to": b"value", "note": b"n"})
    transaction.remove(["from"])


def writes(store, work):
    """Return the requests that a transaction sends to write, by their number."""
    sent = []

    def keeps(self, requests):
        sent.extend(requests)
        raise ConnectionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "_call_together", keeps)
        with pytest.raises(ConnectionError):
            store.meta.transact(work)
    return len(sent)


def write_without_transaction(store, work, taken):
    """Let a node do some writes of a transaction that has ended with its connection.

    The node looks for the transaction when it begins the write, not when the request comes in: here
    it is rolled back first.
    """
    together = Transaction._call_together

    def some(self, requests):
        asked = [requests[number] for number in taken if number < len(requests)]
        together(self, asked)
        raise ConnectionError

    channel = store.client.open_channel(store.client.settings.addresses[0])
    with channel, pytest.MonkeyPatch.context() as patch:
        transaction = Transaction(store.meta, channel, None)
        work(transaction)
        transaction.end(commit=False)
        patch.setattr(Transaction, "_call_together", some)
        with pytest.raises(ConnectionError):
            transaction.write()


def test_what_a_lost_connection_was_writing_is_written_as_a_whole_or_not_at_all(store):
    store.meta.put("from", b"value")
    count = writes(store, move)
    assert count > 1
    for size in range(1, count + 1):
        for taken in itertools.permutations(range(count), size):
            store.meta.put("from", b"value")
            store.meta.remove(["to", "note"])
            write_without_transaction(store, move, taken)
            there = sorted(store.meta.get_all(["from", "to", "note"]))
            assert there == (["note", "to"] if 0 in taken else ["from"]), taken


def test_a_key_that_is_being_removed_counts_as_missing(store):
    meta = store.meta
    meta.put_all({"x1": b"", "x2": b"2", "x3": b""})
    assert meta.get("x1") is None
    assert meta.get_all(["x1", "x2", "x3"]) == {"x2": b"2"}
    assert list(meta.range("x", "y")) == [("x2", b"2")]
    assert list(meta.range("x", "y", limit=1)) == [("x2", b"2")]
    assert meta.transact(lambda transaction: transaction.lock(["x1", "x2"])) == {"x2": b"2"}
    assert not meta.put_if_absent("x2", b"3")
    assert meta.put_if_absent("x1", b"1") and meta.get("x1") == b"1"
    meta.wait_for_transactions("x3")
    assert meta.put_if_absent("x3", b"3")


def test_removals_that_came_before_what_they_depend_on_are_sent_again(store, monkeypatch):
    together = Transaction._call_together

    def reversed_order(self, requests):
        changes, removals = requests[:1], requests[1:]
        early = together(self, removals)
        return [*together(self, changes), *early]

    store.meta.put_all({"x1": b"1", "x2": b"2"})
    monkeypatch.setattr(Transaction, "_call_together", reversed_order)

    def work(transaction):
        transaction.lock(["x1", "x2", "x3"])
        transaction.put({"x3": b"3"})
        transaction.remove(["x1", "x2"])

    store.meta.transact(work)
    monkeypatch.undo()
    # As those that read beside this module would find it.
    rows = store.client.sql(f"SELECT K FROM \"{store.meta.name}\".ENTRY WHERE K LIKE 'x%'")
    assert rows.fetchall() == [("x3",)]


@pytest.mark.parametrize("before", ["nothing", "a file", "published"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionError])
def test_a_publication_that_arrives_after_the_writer_was_discarded_has_its_content(
    store, monkeypatch, before, error
):
    if before == "a file":
        with store.writing("/f") as file:
            file.write(memoryview(b"old" * 5_000))
    writer = store.open_write("/f")
    if before == "published":
        writer.write(memoryview(b"n"))
        writer.publish()
    late = {}

    def unsent(self):
        late.update({key: value or b"" for key, value in self._written.items()})
        raise error

    writer.write(memoryview(b"new" * 5_000))
    with monkeypatch.context() as patch, pytest.raises((error, OSError)):
        patch.setattr(Transaction, "write", unsent)
        writer.close()
    store.meta.put_all(late)
    for _ in range(2):
        store.reclaimer.run(grace_s=0.0)
    assert read(store, "/f") == (b"n" if before == "published" else b"") + b"new" * 5_000
    report = check(store, read=True)
    assert report.problems == [] and report.waiting == 0
    assert report.leftover_chunks == report.missing_chunks == 0


def test_a_repair_does_not_mind_who_removes_meanwhile(store):
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            store.meta.put_all({f"x{n}": b"" for n in range(200)})
            store.meta.remove(f"x{n}" for n in range(200))

    with contextlib.ExitStack() as ended:
        thread = threading.Thread(target=churn, daemon=True)
        thread.start()
        ended.callback(thread.join)
        ended.callback(stop.set)
        for _ in range(5):
            assert check(store, repair=True, wait=False).ok


def test_what_a_discarded_writer_did_not_publish_goes_with_its_file(store):
    writer = store.open_write("/f")
    writer.write(memoryview(b"x" * 5_000))
    writer.publish()
    writer.write(memoryview(b"y" * 90_000))
    writer.store_all()
    writer.discard()
    assert read(store, "/f") == b"x" * 5_000
    store.remove("/f")
    store.reclaimer.run(grace_s=0.0)
    assert store.chunks.count() == 0 and check(store).waiting == 0


def test_what_a_discarded_writer_stored_is_kept_for_what_may_still_arrive(store):
    writer = store.open_write("/f")
    writer.write(memoryview(b"x" * 50_000))
    writer.store_all()
    writer.discard()
    assert store.reclaimer.run() == 1 and store.chunks.count() > 0
    assert store.reclaimer.run(grace_s=0.0) == 0 and store.chunks.count() == 0


def replaced(store):
    with store.writing("/f") as file:
        file.write(memoryview(b"new"))


OPERATIONS = {
    "write": replaced,
    "rename": lambda store: store.rename("/f", "/g"),
    "rename over": lambda store: store.rename("/f", "/d/f"),
    "rename directory": lambda store: store.rename("/d", "/f2"),
    "remove": lambda store: store.remove("/f"),
    "remove directory": lambda store: store.remove_directory("/empty"),
    "remove all": lambda store: store.remove_directory("/d", recursive=True),
    "make directory": lambda store: store.make_directory("/made"),
    "set attributes": lambda store: store.set_attributes("/f", {"a": "1"}),
}


def tree(store, path="/"):
    found = {}
    for name, entry in store.list(path):
        below = f"{path}{name}"
        found[below] = entry.attributes or (None if entry.is_directory else read(store, below))
        if entry.is_directory:
            found |= tree(store, f"{below}/")
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("taken", [True, False])
def test_an_operation_whose_connection_is_lost_while_it_writes_is_done_once(
    client, store, monkeypatch, operation, taken
):
    """The node has done the write without the transaction, or has done nothing."""
    other = Store(client, f"{store.name}X", chunk_bytes=4096)
    for made in (store, other):
        for path in ("/f", "/d/f", "/kept"):
            with made.writing(path) as file:
                file.write(memoryview(path.encode()))
        made.make_directory("/empty")
    write, lost = Transaction.write, []

    def loses(self):
        if lost:
            return write(self)
        lost.append(self.channel)
        if taken:
            self.end(commit=False)
            write(self)
        self.wrote = True
        self.channel.close()
        raise ConnectError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "write", loses)
        OPERATIONS[operation](store)
    assert lost
    OPERATIONS[operation](other)
    assert tree(store) == tree(other)
    for made in (store, other):
        made.reclaimer.run(grace_s=0.0)
        report = check(made, read=True)
        assert report.ok and report.waiting == 0
    assert store.chunks.count() == other.chunks.count()
    other.close()
    client.destroy_cache(other.meta.name)
    client.destroy_cache(other.chunks.name)
