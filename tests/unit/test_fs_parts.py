"""The file system's parts that need no node: paths, records, extents, patterns, errors."""

import errno
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ignitetf.errors import (
    AuthenticationError,
    ConnectError,
    IgniteTFError,
    PartitionLost,
    RequestTimeout,
    ServerError,
    ServerOverloaded,
)
from ignitetf.fs import meta
from ignitetf.fs.chunks import _pieces
from ignitetf.fs.files import FileWriter
from ignitetf.fs.folders import state_names, state_of
from ignitetf.fs.handles import Code, _pattern, code_of
from ignitetf.fs.path import MAX_NAME_BYTES, as_os_error, join, os_errors, parts, relative_to
from ignitetf.fs.records import Entry, Extent, chunk_count, entry_key, entry_range
from ignitetf.net.failures import retry

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", ()),
        ("/", ()),
        ("a/b", ("a", "b")),
        ("//a/./b/", ("a", "b")),
        ("/a/../b", ("b",)),
        ("/../../a", ("a",)),
        ("/a/...", ("a", "...")),
    ],
)
def test_paths_are_resolved_as_the_kernel_does(path, expected):
    assert parts(path) == expected


@given(st.lists(names.filter(lambda n: n not in (".", "..")), max_size=5))
def test_a_joined_path_splits_into_its_names(found):
    short = tuple(name[:60] for name in found)
    assert parts(join(short)) == short


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/a\0b", errno.EINVAL),
        ("/\udcff", errno.EILSEQ),
        ("/" + "x" * (MAX_NAME_BYTES + 1), errno.ENAMETOOLONG),
        ("/" + "ż" * 128, errno.ENAMETOOLONG),
    ],
)
def test_impossible_names_are_refused(path, code):
    with pytest.raises(OSError) as caught:
        parts(path)
    assert caught.value.errno == code
    assert parts("/" + "x" * MAX_NAME_BYTES)


def test_relative_paths():
    assert relative_to("/a/b/c", "/a") == "b/c"
    assert relative_to("/a", "/") == "a"


@given(names)
def test_a_range_holds_the_entries_of_one_directory(name):
    first, end = entry_range("00000000000000ab")
    assert first <= entry_key("00000000000000ab", name) < end
    for other in ("00000000000000aa", "00000000000000ac", "0000000000000000"):
        assert not first <= entry_key(other, name) < end


def test_entries_survive_their_bytes():
    file = Entry(
        None,
        123,
        (Extent("0" * 15 + "1", 0, 10, 4), Extent("0" * 15 + "2", 3, 7, 4)),
        {"sha256": "ab"},
        ("0" * 15 + "2",),
    )
    assert Entry.from_bytes(file.to_bytes()) == file
    assert file.size == 17
    assert file.contents() == {"0" * 15 + "1": 3, "0" * 15 + "2": 3}
    directory = Entry("0" * 16, 5)
    assert Entry.from_bytes(directory.to_bytes()) == directory
    assert json.loads(directory.to_bytes())["t"] == "d"


extents = st.lists(
    st.builds(
        Extent,
        st.integers(0, 3).map(lambda n: f"{n:016x}"),
        st.integers(0, 50),
        st.integers(0, 50),
        st.integers(1, 20),
    ),
    max_size=5,
)


@given(extents)
def test_pieces_are_the_bytes_of_the_extents_in_order(found):
    expected = [
        (int(e.content_id, 16), *divmod(at, e.chunk_bytes))
        for e in found
        for at in range(e.start, e.end)
    ]
    pieces = _pieces(found)
    assert [(p.content, p.number, at) for p in pieces for at in range(p.low, p.high)] == expected


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_chunk_count_is_the_least_that_holds_all(size, chunk):
    count = chunk_count(size, chunk)
    assert (count - 1) * chunk < size <= count * chunk or size == count == 0


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.txt", ["a.txt", ".txt"], ["a.txt.x", "atxt"]),
        ("?", ["a", "ż", "\n"], ["", "ab"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("[^ab]x", ["cx"], ["ax"]),
        ("[a-c]", ["b"], ["d", "-"]),
        (r"\*", ["*"], ["a"]),
        ("[", ["["], ["a"]),
        ("a+b(c)", ["a+b(c)"], ["aab(c)"]),
    ],
)
def test_patterns_are_those_of_tensorflow(pattern, yes, no):
    import re

    matches = re.compile(_pattern(pattern)).fullmatch
    assert all(matches(name) for name in yes)
    assert not any(matches(name) for name in no)


@pytest.mark.parametrize(
    ("error", "kind", "code", "tensorflow"),
    [
        (AuthenticationError("x"), PermissionError, errno.EACCES, Code.PERMISSION_DENIED),
        (ConnectError("x"), ConnectionRefusedError, errno.ECONNREFUSED, Code.UNAVAILABLE),
        (ConnectError("lost"), ConnectionResetError, errno.ECONNRESET, Code.UNAVAILABLE),
        (RequestTimeout("x"), TimeoutError, errno.ETIMEDOUT, Code.UNAVAILABLE),
        (ServerOverloaded("x"), OSError, errno.ENOSPC, Code.RESOURCE_EXHAUSTED),
        (
            ServerError("x", server_message="Failed to update keys (retry)"),
            OSError,
            errno.ENOSPC,
            Code.RESOURCE_EXHAUSTED,
        ),
        (PartitionLost("x"), OSError, errno.EIO, Code.DATA_LOSS),
        (IgniteTFError("x"), OSError, errno.EIO, Code.DATA_LOSS),
    ],
)
def test_every_error_has_an_errno_and_a_code(error, kind, code, tensorflow):
    found = as_os_error(error, "/p")
    assert (type(found), found.errno, found.filename) == (kind, code, "/p")
    assert code_of(error) == tensorflow
    with pytest.raises(kind) as caught, os_errors("/p"):
        raise error
    assert caught.value.errno == code


def test_codes_of_other_exceptions():
    assert code_of(FileNotFoundError(errno.ENOENT, "x")) == Code.NOT_FOUND
    assert code_of(KeyboardInterrupt()) == Code.CANCELLED
    assert code_of(ValueError("x")) == Code.INVALID_ARGUMENT
    assert code_of(RuntimeError("x")) == Code.UNKNOWN


STATE = """model_checkpoint_path: "ckpt-2"
all_model_checkpoint_paths: "/run/ckpt-1"
all_model_checkpoint_paths: "ckpt-2"
all_model_checkpoint_timestamps: 1.0
all_model_checkpoint_timestamps: 2.0
last_preserved_timestamp: 0.5
"""


def test_the_state_file_is_read_and_rewritten():
    assert state_names(STATE) == ("ckpt-2", ["ckpt-1", "ckpt-2"])
    assert state_of(STATE, "", {"ckpt-2"}) == (
        'model_checkpoint_path: "ckpt-2"\n'
        'all_model_checkpoint_paths: "ckpt-2"\n'
        "all_model_checkpoint_timestamps: 2.0\n"
        "last_preserved_timestamp: 0.5\n"
    )
    assert state_names(state_of(STATE, "", {"ckpt-1"})) == ("ckpt-1", ["ckpt-1"])
    assert state_of(STATE, "", set()) is None
    assert state_names(STATE, "a/b") == ("a/b/ckpt-2", ["a/b/ckpt-1", "a/b/ckpt-2"])
    assert state_names(state_of(STATE, "a", {"a/ckpt-1", "a/ckpt-2"}))[1] == ["ckpt-1", "ckpt-2"]
    # As TensorFlow writes a name that is not ASCII.
    text = r'model_checkpoint_path: "\305\274 \"1\""'
    assert state_names(text) == ('ż "1"', ['ż "1"'])
    assert state_of(text, "", {'ż "1"'}) == text + "\n"


def test_importing_the_file_system_takes_no_tensorflow():
    program = (
        "import sys, ignitetf.fs.filesystem, ignitetf.fs.handles, ignitetf.fs.push\n"
        "assert not {'tensorflow', 'keras', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (
            ServerError(
                "x", server_message="Committing a transaction has produced runtime exception"
            ),
            errno.ENOSPC,
        ),
        (ServerError("x", server_message="rolled back"), errno.EIO),
        (ConnectError("the connection was lost"), errno.ECONNRESET),
        (None, errno.ESTALE),
    ],
    ids=["full", "rolled back", "lost", "silent"],
)
def test_a_lease_that_half_a_commit_removed_is_told_by_what_ended_it(failure, code):
    """What the first try left half done must not read as a writer that was silent."""
    tries = []

    def action(earlier):
        tries.append(earlier)
        if earlier is None and failure is not None:
            raise failure
        transaction = SimpleNamespace(
            earlier=earlier, unsettled=True, lock=lambda keys: {next(iter(keys)): b""}
        )
        return FileWriter._show(writer, transaction, True, {})

    content = SimpleNamespace(content_id="c")
    writer = SimpleNamespace(_content=content, _directory_id="d", _key="d/f", path="/f")
    settings = SimpleNamespace(idle_timeout_s=0.5)
    with pytest.raises(OSError) as caught, os_errors("/f"):
        retry(settings, action)
    assert tries[0] is None and (len(tries) > 1) == (failure is not None)
    assert caught.value.errno == code


@pytest.mark.parametrize("at", ["begin", "work", "refused", "write", "commit"])
def test_only_a_try_that_was_lost_while_it_wrote_leaves_a_transaction_unsettled(at, monkeypatch):
    seen = []

    class Cut(meta.Transaction):
        def __init__(self, cache, channel, earlier):
            self.earlier, self.unsettled, self.channel = earlier, earlier is not None, channel
            self.wrote = False
            if at == "begin" and not seen:
                fail()

        def wait_started(self):
            return

        def write(self):
            self.wrote = True
            if at == "refused" and len(seen) == 1:
                seen.append(None)
                raise ServerError("x", server_message="rolled back")
            if at == "write" and len(seen) == 1:
                fail()

        def end(self, *, commit):
            if commit and at == "commit" and len(seen) == 1:
                fail()

    def fail():
        seen.append(None)
        channel.closed = True
        raise ConnectError("the connection was lost")

    def work(transaction):
        if at == "work" and not seen:
            fail()
        seen.append(transaction.unsettled)
        return "done"

    monkeypatch.setattr(meta, "Transaction", Cut)
    channel = SimpleNamespace(closed=False)
    client = SimpleNamespace(
        settings=SimpleNamespace(idle_timeout_s=5),
        acquire=lambda: channel,
        release=lambda channel: None,
    )
    cache = SimpleNamespace(client=client)
    assert meta.MetaCache.transact(cache, work) == "done"
    assert seen[-1] is (at in ("write", "commit"))
