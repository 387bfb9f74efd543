"""Laws of the file system's store, on a real node."""

import contextlib
import errno
import os
import random
import threading
import time

import pytest
from helpers.stores import new_store

from ignitetf.fs import meta
from ignitetf.fs.check import check
from ignitetf.fs.files import close_together
from ignitetf.fs.records import Entry
from ignitetf.fs.store import Store
from ignitetf.fs.tree import Outdated
from ignitetf.net.channel import Channel
from ignitetf.net.client import connect

pytestmark = pytest.mark.node


@pytest.fixture
def store(client):
    with new_store(client, 4096) as made:
        yield made


def write(store, path, data, mode="w", **options):
    with store.writing(path, mode, **options) as file:
        file.write(memoryview(data))


def read(store, path):
    file = store.open_read(path)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def consistent(store):
    store.reclaimer.run(0)
    report = check(store, read=True)
    assert report.problems == []
    assert report.leftover_chunks == report.missing_chunks == 0
    return report


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 40_000])
def test_what_is_written_is_read_at_every_offset(store, size):
    data = random.Random(size).randbytes(size)
    write(store, "/f", data)
    file = store.open_read("/f")
    rng = random.Random(1)
    for _ in range(50):
        offset, count = rng.randrange(size + 10), rng.randrange(9000)
        assert file.read(offset, count) == data[offset : offset + count]
    assert store.stat("/f").size == size
    file.close()
    consistent(store)


def test_nothing_is_seen_before_publication_and_all_of_it_after(store):
    writer = store.open_write("/new")
    writer.write(memoryview(b"x" * 10_000))
    assert not store.exists("/new")
    writer.publish()
    assert read(store, "/new") == b"x" * 10_000
    writer.write(memoryview(b"y" * 5_000))
    assert read(store, "/new") == b"x" * 10_000
    writer.close()
    assert read(store, "/new") == b"x" * 10_000 + b"y" * 5_000
    consistent(store)


def test_replacing_keeps_the_old_content_for_its_readers(store):
    old, new = os.urandom(30_000), os.urandom(20_000)
    write(store, "/f", old)
    reader = store.open_read("/f")
    assert reader.read(0, 100) == old[:100]
    write(store, "/f", new)
    assert read(store, "/f") == new
    assert reader.read(0, 30_000) == old
    reader.close()
    consistent(store)


def test_a_discarded_writer_leaves_the_old_file_and_no_chunk(store):
    write(store, "/f", b"old")
    with pytest.raises(ZeroDivisionError), store.writing("/f") as writer:
        writer.write(memoryview(b"new" * 10_000))
        raise ZeroDivisionError
    assert read(store, "/f") == b"old"
    consistent(store)
    assert store.chunks.count() == 1


@pytest.mark.parametrize("step", ["lock", "put", "remove", "commit", "waits"])
def test_a_transaction_that_met_its_time_limit_runs_again(store, monkeypatch, step):
    monkeypatch.setattr(meta, "_LOCK_TIMEOUT_MS", 200)
    store.meta.put_all({"k": b"old", "other": b"1"})
    late_tries, holding_tries = [], []

    def late(transaction):
        transaction.lock(["k"])
        transaction.put({"k": b"new"})
        late_tries.append(transaction)
        if len(late_tries) == 1:
            time.sleep(0.5)
        if step == "lock":
            transaction.lock(["other"])
        elif step == "put":
            transaction.put({"other": b"2"})
        elif step == "remove":
            transaction.remove(["other"])

    def holds(transaction):
        transaction.lock(["k"])
        holding_tries.append(transaction)
        if len(holding_tries) == 1:
            # The other waits for the lock, in vain at first, while this one outlives its limit.
            other.start()
            time.sleep(0.5)

    other = threading.Thread(target=lambda: store.meta.transact(late))
    if step == "waits":
        store.meta.transact(holds)
        other.join(30)
        assert not other.is_alive() and len(holding_tries) > 1
    else:
        store.meta.transact(late)
    assert len(late_tries) > 1
    assert store.meta.get("k") == b"new"
    assert store.meta.get("other") == {"put": b"2", "remove": None}.get(step, b"1")


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("way", ["publish", "close", "together"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ConnectionError])
def test_what_was_committed_before_an_interruption_stays(store, monkeypatch, error, way, moved):
    ways = {
        "publish": lambda writer: writer.publish(),
        "close": lambda writer: writer.close(),
        "together": lambda writer: close_together(store, [(writer, {})]),
    }
    transact = store.meta.transact

    def interrupted(work, begun):
        transact(work, begun)
        monkeypatch.undo()
        if moved:
            store.rename("/f", "/g")
        raise error

    write(store, "/f", b"old")
    writer = store.open_write("/f")
    writer.write(memoryview(b"new" * 10_000))
    monkeypatch.setattr(store.meta, "transact", interrupted)
    with pytest.raises((KeyboardInterrupt, OSError)):
        ways[way](writer)
    writer.discard()
    store.reclaimer.run(grace_s=0.0)
    assert read(store, "/g" if moved else "/f") == b"new" * 10_000
    consistent(store)


def test_appending_keeps_what_was_there(store):
    expected = b""
    rng = random.Random(2)
    for _ in range(20):
        piece = rng.randbytes(rng.randrange(6000))
        write(store, "/log", piece, "a")
        expected += piece
        assert read(store, "/log") == expected
    # Short extents were taken in by the next one.
    assert len(store.stat("/log").extents) <= len(expected) // 4096 + 2
    consistent(store)


def test_writers_who_append_at_the_same_time_keep_all_their_bytes(store):
    write(store, "/log", b"begin|")
    writers = [store.open_write("/log", "a") for _ in range(3)]
    for number, writer in enumerate(writers):
        writer.write(memoryview(b"%d" % number * 5000 + b"|"))
        writer.publish()
    for number, writer in enumerate(writers):
        writer.write(memoryview(b"%d-end|" % number))
        writer.close()
    found = read(store, "/log").split(b"|")
    assert found[0] == b"begin"
    expected = [b"%d" % n * 5000 for n in range(3)] + [b"%d-end" % n for n in range(3)]
    assert sorted(found[1:-1]) == sorted(expected)
    consistent(store)


def test_a_file_renamed_under_its_writer_keeps_it(store):
    writer = store.open_write("/a")
    writer.write(memoryview(b"one "))
    writer.publish()
    store.rename("/a", "/b")
    store.make_directory("/d")
    store.rename("/b", "/d/c")
    writer.write(memoryview(b"two"))
    writer.close()
    assert read(store, "/d/c") == b"one two"
    assert not store.exists("/a")
    consistent(store)


def test_a_file_removed_under_its_writer_stays_removed(store):
    writer = store.open_write("/a")
    writer.write(memoryview(b"one"))
    writer.publish()
    store.remove("/a")
    writer.write(memoryview(b"two"))
    writer.close()
    assert not store.exists("/a")
    consistent(store)
    assert store.chunks.count() == 0


def test_a_renamed_directory_takes_all_below_it_and_copies_nothing(store):
    for number in range(5):
        write(store, f"/a/b/c{number}/file", b"%d" % number)
    before = set(store.chunks.scan())
    store.rename("/a", "/moved")
    assert set(store.chunks.scan()) == before
    for number in range(5):
        assert read(store, f"/moved/b/c{number}/file") == b"%d" % number
    with pytest.raises(FileNotFoundError):
        store.stat("/a/b")
    # A new directory of the old name is another one.
    write(store, "/a/b/new", b"")
    assert [name for name, _ in store.list("/a/b")] == ["new"]
    consistent(store)


def test_stat_takes_two_round_trips_at_most(client, store):
    path = "/" + "/".join(f"level{n}" for n in range(12)) + "/file"
    write(store, path, b"x")
    cold = Store(client, store.name)
    for expected in (2, 1):
        before = cold.meta.round_trips
        assert cold.stat(path).size == 1
        assert cold.meta.round_trips - before == expected
    store.rename("/level0", "/other")
    with pytest.raises(FileNotFoundError):
        cold.stat(path)
    assert cold.stat(path.replace("level0", "other")).size == 1


@pytest.mark.parametrize("files", [1, 5])
def test_files_that_are_closed_together_take_one_transaction_of_four_round_trips(store, files):
    writers = [store.open_write(f"/f{n}", "w") for n in range(files)]
    for writer in writers:
        writer.write(memoryview(b"x" * 10_000))
        writer.store_all()
    before = store.meta.round_trips
    close_together(store, [(writer, {}) for writer in writers])
    # Begin, lock, write, commit; and seldom once more what the node took too early.
    assert store.meta.round_trips - before in (4, 5)
    assert all(read(store, f"/f{n}") == b"x" * 10_000 for n in range(files))
    consistent(store)


def test_a_transaction_that_met_its_time_limit_has_written_nothing(store, monkeypatch):
    monkeypatch.setattr(meta, "_LOCK_TIMEOUT_MS", 60)
    for wait_s in (0.05, 0.055, 0.06, 0.065, 0.08):
        store.meta.put_all({"k": b"old", "other": b"1"})
        found = []

        def work(transaction, found=found, wait_s=wait_s):
            found.append(transaction.lock(["k", "other"]))
            transaction.put({"k": b"new"})
            transaction.remove(["other"])
            if len(found) == 1:
                time.sleep(wait_s)

        store.meta.transact(work)
        assert all(held == {"k": b"old", "other": b"1"} for held in found)
        assert store.meta.get_all(["k", "other"]) == {"k": b"new"}


def test_a_transaction_reads_what_it_has_written(store):
    store.meta.put_all({"a": b"1", "b": b"2"})

    def work(transaction):
        assert transaction.lock("ab") == {"a": b"1", "b": b"2"}
        transaction.put({"a": b"3", "c": b"4"})
        transaction.remove(["b", "c", "d"])
        transaction.put({"d": b"5"})
        assert transaction.lock("abcd") == {"a": b"3", "d": b"5"}
        transaction.put({"b": b"6"})

    store.meta.transact(work)
    assert store.meta.get_all("abcd") == {"a": b"3", "b": b"6", "d": b"5"}


def test_names_are_any_unicode(store):
    names = [
        "żółć 1.txt",
        "日本",
        "🎉🎉",
        "a\nb",
        " ",
        "...",
        "%2F",
        "'quoted\"",
        "A",
        "a",
        "\\",
        "*",
    ]
    for number, name in enumerate(names):
        write(store, f"/u/{name}", b"%d" % number)
    assert [name for name, _ in store.list("/u")] == sorted(names)
    for number, name in enumerate(names):
        assert read(store, f"/u/{name}") == b"%d" % number
    consistent(store)


def failing(store, code, action, *args, **kwargs):
    with pytest.raises(OSError) as caught:
        action(*args, **kwargs)
    assert caught.value.errno == code, caught.value


def test_wrong_requests_have_the_errno_of_a_local_file_system(store):
    write(store, "/d/f", b"")
    failing(store, errno.ENOENT, store.stat, "/x")
    failing(store, errno.ENOENT, store.stat, "/x/y")
    failing(store, errno.ENOTDIR, store.stat, "/d/f/g")
    failing(store, errno.EISDIR, store.open_read, "/d")
    failing(store, errno.EISDIR, store.open_write, "/d")
    failing(store, errno.EISDIR, store.open_write, "/")
    failing(store, errno.EISDIR, store.open_write, "/d/new/")
    failing(store, errno.ENOTDIR, store.open_write, "/d/f/g")
    failing(store, errno.ENOENT, store.open_write, "/no/such", parents=False)
    failing(store, errno.EEXIST, store.open_write, "/d/f", "x")
    failing(store, errno.EEXIST, store.make_directory, "/d")
    failing(store, errno.EEXIST, store.make_directory, "/d/f", exist_ok=True)
    failing(store, errno.ENOENT, store.make_directory, "/no/such")
    failing(store, errno.ENOTDIR, store.make_directory, "/d/f/g", parents=True)
    failing(store, errno.ENOTDIR, store.list, "/d/f")
    failing(store, errno.ENOENT, store.remove, "/x")
    failing(store, errno.EISDIR, store.remove, "/d")
    failing(store, errno.ENOTEMPTY, store.remove_directory, "/d")
    failing(store, errno.ENOTDIR, store.remove_directory, "/d/f")
    failing(store, errno.EBUSY, store.remove_directory, "/", recursive=True)
    failing(store, errno.EBUSY, store.rename, "/", "/x")
    failing(store, errno.EINVAL, store.rename, "/d", "/d/below")
    failing(store, errno.EISDIR, store.rename, "/d/f", "/d")
    failing(store, errno.ENOENT, store.rename, "/x", "/y")
    failing(store, errno.EINVAL, store.open_write, "/nul\0")
    failing(store, errno.EILSEQ, store.open_write, "/\udc80")
    failing(store, errno.ENAMETOOLONG, store.open_write, "/" + "n" * 256)
    store.make_directory("/e")
    failing(store, errno.ENOTEMPTY, store.rename, "/e", "/d")
    failing(store, errno.ENOTDIR, store.rename, "/e", "/d/f")
    store.rename("/d", "/e")
    assert read(store, "/e/../e/./f") == b""
    consistent(store)


def test_a_damaged_chunk_is_an_error_and_not_data(store):
    write(store, "/f", b"x" * 10_000)
    (extent,) = store.stat("/f").extents
    import uuid

    cache = store.client.cache(store.chunks.name)
    key = uuid.UUID(int=int(extent.content_id, 16) << 64 | 1)
    value = bytearray(cache.get(key))
    value[1000] ^= 1
    cache.put(key, bytes(value))
    failing(store, errno.EIO, read, store, "/f")
    assert check(store, read=True).problems
    cache.remove_key(key)
    failing(store, errno.ESTALE, read, store, "/f")
    assert check(store).missing_chunks == 1


def test_a_directory_of_ten_thousand_files_lists_in_few_requests(store, monkeypatch):
    """However slow the machine: no request for a file, but pages (`bench fs` has the seconds)."""
    store.make_directory("/many")
    directory = store.stat("/many").directory_id
    entry = Entry(None, 1).to_bytes()
    names = [f"file-{n:05}" for n in range(10_000)]
    for at in range(0, len(names), 1000):
        store.meta.put_all({f"{directory}/{name}": entry for name in names[at : at + 1000]})
    store.list("/many")
    sent, send = [], Channel.send
    monkeypatch.setattr(Channel, "send", lambda *args: sent.append(args[1]) or send(*args))
    assert [name for name, _ in store.list("/many")] == names
    assert 1 <= len(sent) <= 20, sent
    monkeypatch.undo()
    store.remove_directory("/many", recursive=True)
    assert list(store.meta.range(f"{directory}/", f"{directory}0")) == []


def test_readers_of_a_rename_see_one_of_the_names(address, store):
    """A reader who finds neither name, asked one after the other, would have seen a torn rename."""
    write(store, "/one/file", b"x")
    stop = threading.Event()
    torn, begun, ended = [], [0], [0]

    def look():
        with connect(address) as client:
            own = Store(client, store.name)
            while not stop.is_set():
                before = ended[0]
                # One rename may come between two looks: three looks have two of one state.
                found = any(own.exists(f"/{n}/file") for n in ("one", "two", "one", "two"))
                if not found and begun[0] - before <= 1:
                    torn.append(time.time())

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(60):
        begun[0] += 1
        store.rename(*(("/one", "/two") if number % 2 == 0 else ("/two", "/one")))
        ended[0] += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == []


def test_a_dead_writer_is_reclaimed(store):
    writer = store.open_write("/f")
    writer.write(memoryview(b"x" * 50_000))
    store.leases.writer_ended(writer._lease)
    key, value = next(iter(store.meta.range("+", ",")))
    from ignitetf.fs.records import decode, encode

    # As if the process had been another one, which does not exist.
    store.meta.put(key, encode({**decode(value), "p": 2**22 + 1}))
    assert store.chunks.count() > 0
    assert check(store).waiting == 1
    report = check(store, repair=True)
    assert report.ok
    assert report.waiting == store.chunks.count() == 0
    failing(store, errno.ESTALE, writer.close)


def test_a_removal_that_was_cut_short_is_finished_by_the_repair(store):
    """The name is gone, and whoever removed it died before what is below it was."""
    for number in range(3):
        write(store, f"/gone/below/f{number}", b"x" * 10_000)
    write(store, "/kept", b"y" * 10_000)
    store.removal._directory(("gone",), recursive=True)
    assert not store.exists("/gone")
    assert store.chunks.count() == 12
    report = check(store, repair=True)
    assert report.ok and report.waiting == 0 and report.repaired == []
    assert store.chunks.count() == 3
    assert check(store, read=True).waiting == 0
    assert read(store, "/kept") == b"y" * 10_000


@pytest.mark.parametrize("gone", ["removed", "renamed", "its directory"])
@pytest.mark.parametrize("size", [10, 200_000])
def test_what_is_appended_to_a_file_that_goes_makes_no_file(store, gone, size):
    with store.writing("/d/f") as file:
        file.write(memoryview(b"head"))
    writer = store.open_write("/d/f", "a")
    writer.write(memoryview(b"t" * size))
    if gone == "removed":
        store.remove("/d/f")
    elif gone == "renamed":
        store.rename("/d/f", "/g")
    else:
        store.remove_directory("/d", recursive=True)
    with pytest.raises(FileNotFoundError):
        writer.close()
    assert not store.exists("/d/f")
    if gone == "renamed":
        assert store.stat("/g").size == 4
    # Whoever appends to a file that is not there makes it.
    with store.writing("/d/f", "a") as file:
        file.write(memoryview(b"new"))
    assert store.stat("/d/f").size == 3


def test_several_files_appear_and_go_at_one_moment(store):
    """Whoever sees the first of them finds all the others."""
    names = [f"/{d}/{n}" for d in "xy" for n in "abc"]
    for directory in "xy":
        store.make_directory(f"/{directory}")
    stop, wrong = threading.Event(), []

    def look():
        while not stop.is_set():
            found = [store.exists(name) for name in names]
            if found != sorted(found):
                wrong.append(found)

    for version in (1, 2):
        writers = [(store.open_write(name), {"v": str(version)}) for name in names]
        for writer, _ in writers:
            writer.write(memoryview(b"x" * version * 20_000))
            writer.store_all()
        assert {store.exists(name) for name in names} == {version == 2}
        if version == 1:
            thread = threading.Thread(target=look)
            thread.start()
        close_together(store, writers)
        stop.set()
        thread.join()
        assert [store.stat(name).attributes for name in names] == [{"v": str(version)}] * 6
        assert {read(store, name) for name in names} == {b"x" * version * 20_000}
    assert wrong == []
    with pytest.raises(FileNotFoundError):
        store.remove(*names, "/x/none")
    assert all(store.exists(name) for name in names)
    store.remove(*names)
    assert store.list("/x") == store.list("/y") == []
    consistent(store)


def put(store, path, data):
    with store.writing(path) as file:
        file.write(memoryview(data))


CHANGES = {
    "replaced": lambda store: put(store, "/d/there", b"new"),
    "removed": lambda store: store.remove("/d/there"),
    "created": lambda store: put(store, "/d/none", b"new"),
    "moved": lambda store: store.rename("/d", "/e"),
    "directory gone": lambda store: store.remove_directory("/d", recursive=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_relies_on_other_files_happens_only_while_they_are_unchanged(store, change):
    def write(unchanged):
        writer = store.open_write("/x/b")
        try:
            writer.write(memoryview(b"more"))
            close_together(store, [(writer, {})], unchanged)
        finally:
            writer.discard()

    store.make_directory("/d")
    put(store, "/d/there", b"same")
    for path in ("/x/a", "/x/b", "/x/c"):
        put(store, path, b"x")
    own = store.stat("/x/b")
    seen = {"/d/there": store.stat("/d/there"), "/d/none": None}
    store.set_attributes("/d/there", {"k": "v"})  # is no change of the content
    store.remove("/x/a", unchanged={**seen, "/x/a": store.stat("/x/a")})
    write({**seen, "/x/b": own})
    with pytest.raises(Outdated):
        write({**seen, "/x/b": own})
    before = dict(store.list("/x"))
    CHANGES[change](store)
    for work in (write, lambda unchanged: store.remove("/x/b", "/x/c", unchanged=unchanged)):
        with pytest.raises(Outdated):
            work(seen)
        assert dict(store.list("/x")) == before
        assert read(store, "/x/b") == b"more"
    consistent(store)


def test_several_files_are_shown_or_none(store):
    store.make_directory("/x")
    writers = [(store.open_write(f"/x/{name}"), {}) for name in "ab"]
    store.make_directory("/x/b")
    with pytest.raises(IsADirectoryError):
        close_together(store, writers)
    for writer, _ in writers:
        writer.discard()
    assert [name for name, _ in store.list("/x")] == ["b"]


OPERATIONS = {  # with what they give in an empty file system
    "stat": (lambda store: store.stat("/d/f"), FileNotFoundError),
    "exists": (lambda store: store.exists("/d/f"), False),
    "list": (lambda store: store.list("/"), []),
    "mkdir": (lambda store: store.make_directory("/d"), None),
    "write": (lambda store: write(store, "/d/f", b"new"), None),
    "read": (lambda store: read(store, "/d/f"), FileNotFoundError),
    "remove": (lambda store: store.remove("/d/f"), FileNotFoundError),
    "rmdir": (lambda store: store.remove_directory("/d"), FileNotFoundError),
    "rename": (lambda store: store.rename("/d/f", "/g"), FileNotFoundError),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_store_whose_node_was_started_again_is_empty_and_works(client, store, operation):
    write(store, "/d/f", b"old")
    writer = store.open_write("/d/g")
    writer.write(memoryview(b"x" * 200_000))
    for cache in (store.meta.name, store.chunks.name):  # as if they were in memory only
        client.destroy_cache(cache)
    run, expected = OPERATIONS[operation]
    try:
        outcome = run(store)
    except OSError as error:
        outcome = type(error)
    assert outcome == expected
    write(store, "/d/h", b"next")
    assert read(store, "/d/h") == b"next"
    with pytest.raises(OSError, match="lost it"):
        writer.close()
    assert check(store, repair=True).ok


def transactions(client):
    return client.sql("SELECT COUNT(*) FROM SYS.TRANSACTIONS").fetchall()[0][0]


def soon(client, count):
    until = time.monotonic() + 5
    while transactions(client) != count and time.monotonic() < until:
        time.sleep(0.02)
    return transactions(client) == count


def none_left(client):
    return soon(client, 0)


def test_a_transaction_that_was_begun_is_taken_once_or_ends(client, store, monkeypatch):
    with contextlib.closing(meta.EarlyTransaction(store.meta)) as begun:
        assert begun.take() is None
        begun.begin()
        assert soon(client, 1)
        store.meta.transact(lambda transaction: transaction.put({"key": b"1"}), begun)
        assert store.meta.get("key") == b"1" and none_left(client)
        assert begun.take() is None
    with contextlib.closing(meta.EarlyTransaction(store.meta)) as begun:
        begun.begin()
    assert begun.take() is None and none_left(client)
    with (
        contextlib.closing(meta.EarlyTransaction(store.meta)) as begun,
        monkeypatch.context() as patch,
    ):
        begun.begin()
        patch.setattr(meta, "_EARLY_S", -1.0)  # its time may pass amid the work
        assert begun.take() is None and none_left(client)
    store.meta.remove(["key"])


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_cannot_be_stored_leaves_no_transaction(client, store, monkeypatch, error):
    from ignitetf.fs.chunks import ContentWriter

    write(store, "/f", b"old")
    flush = ContentWriter.flush

    def fails(content):
        flush(content)
        raise error

    with pytest.raises(error), monkeypatch.context() as patch, store.writing("/f") as writer:
        writer.write(memoryview(b"new"))
        patch.setattr(ContentWriter, "flush", fails)
    assert none_left(client)
    assert read(store, "/f") == b"old"
    consistent(store)
