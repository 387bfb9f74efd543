"""Batches copied to a device ahead of their consumer: their values, how many, their end."""

import gc
import sys
import threading

import numpy as np
import pytest

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.read.devices import DeviceBatches, check_dense, device_of
from ignitetf.read.export import DenseNode, RunsNode, StructNode, TextNode
from ignitetf.wire.buffers import BufferPool

FRAMEWORKS = ("jax", "torch")
WAIT_S = 60
ROWS = 1000


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    pytest.importorskip(request.param)
    return request.param


class Source:
    """Batches of one row each that hold their number, in memory of a pool."""

    def __init__(self, count=10, fails_at=None, shape=()):
        self.consumed = 0
        self.closed = False
        self._count, self._fails_at, self._shape = count, fails_at, shape
        self._pool = BufferPool()

    def __next__(self):
        if self.consumed == self._fails_at:
            raise ConnectionError("lost")
        if self.consumed == self._count:
            raise StopIteration
        size = 4 * int(np.prod(self._shape))
        values = self._pool.take(size).view(np.int32).reshape(1, *self._shape)
        values[...] = self.consumed
        self.consumed += 1
        return {"key": values, "val": {"V": values}}

    def state(self, rows_consumed=None):
        return {"rows": rows_consumed}

    def close(self):
        self.closed = True


class Memory:
    """A device that is the host's memory, and counts what is copied to it."""

    def __init__(self):
        self.copies = 0
        self.counted = threading.Condition()

    def copy(self, columns):
        with self.counted:
            self.copies += 1
            self.counted.notify_all()
        return {name: np.copy(value["V"]) for name, value in columns.items() if name == "val"}

    def arrived(self, copied):
        return copied

    def wait_for(self, copies):
        with self.counted:
            assert self.counted.wait_for(lambda: self.copies >= copies, WAIT_S)


def threads():
    return {t for t in threading.enumerate() if t.name == "ignitetf-device"}


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_batches_are_copied_while_the_consumer_has_one_and_no_more_than_ahead(ahead):
    device = Memory()
    with DeviceBatches(Source(20), device, True, ahead) as batches:
        for number, batch in enumerate(batches):
            # Without copies ahead this would wait for ever.
            device.wait_for(min(20, number + 1 + ahead))
            assert device.copies <= number + 1 + ahead
            assert batch["val"].ravel().tolist() == [number]
            assert batches.state() == {"rows": number + 1} and batches.consumed == number + 1
    assert number == 19


def test_an_end_of_any_kind_leaves_no_thread():
    before = threads()
    source = Source()
    batches = DeviceBatches(source, Memory(), True, 2)
    assert next(batches) and batches.state() == {"rows": 1}
    batches.close()
    assert threads() == before and source.closed
    assert list(batches) == [] and batches.state() == {"rows": 1}

    source = Source()
    dropped = DeviceBatches(source, Memory(), True, 2)
    next(dropped)
    del dropped
    gc.collect()
    assert threads() == before and source.closed

    whole = DeviceBatches(source := Source(), Memory(), True, 2)
    assert len(list(whole)) == 10
    whole.close()
    assert threads() == before and source.closed


def test_an_error_comes_after_the_batches_before_it():
    batches = DeviceBatches(source := Source(fails_at=3), Memory(), True, 2)
    for number in range(3):
        assert next(batches)["val"].ravel().tolist() == [number]
    with pytest.raises(ConnectionError, match="lost"):
        next(batches)
    assert list(batches) == [] and source.closed
    assert batches.state() == {"rows": 3}


def test_no_batch_shows_rows_of_a_later_one(framework):
    # Blocks of a pool of this size are used again as soon as nothing refers to them.
    shape = (300, 100)
    source = Source(40, shape=shape)
    with DeviceBatches(source, device_of(framework, "cpu"), False, 2) as batches:
        kept = [batch["val"]["V"] for batch in batches]
    for number, values in enumerate(kept):
        np.testing.assert_array_equal(np.asarray(values), np.full((1, *shape), number, np.int32))


@pytest.mark.parametrize(
    "dtype", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
)
def test_gathered_rows_are_those_of_numpy(framework, dtype):
    rng = np.random.default_rng(3)
    column = rng.integers(0, 2 if dtype == "?" else 100, (ROWS, 3)).astype(dtype)
    numbers = rng.permutation(ROWS)
    device = device_of(framework, "cpu")
    kept, index = device.keep({"A": {"B": column}}), device.keep(numbers)
    for start, stop in ((0, 64), (64, 128), (960, ROWS), (0, 0)):
        found = device.gather(kept, device.part(index, start, stop))["A"]["B"]
        np.testing.assert_array_equal(np.asarray(found), column[numbers[start:stop]])
    np.testing.assert_array_equal(np.asarray(kept["A"]["B"]), column)


@pytest.mark.parametrize("kind", ["strided", "read-only", "unaligned", "empty"])
def test_columns_of_any_memory_are_copied(framework, kind):
    values = np.arange(ROWS, dtype=np.int32)
    column = {
        "strided": lambda: np.repeat(values, 3)[::3],
        "read-only": lambda: np.frombuffer(values.tobytes(), np.int32),
        "unaligned": lambda: np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:].view(np.int32),
        "empty": lambda: values[:0],
    }[kind]()
    device = device_of(framework, "cpu")
    found = device.arrived(device.copy({"val": column}))
    np.testing.assert_array_equal(np.asarray(found["val"]), column)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_jax_wraps_no_number_around(dtype):
    jax = pytest.importorskip("jax")
    device = device_of("jax", None)
    most = np.iinfo(f"{dtype[0]}4").max
    fitting = np.array([0, most], dtype)
    assert np.asarray(device.keep(fitting)).tolist() == fitting.tolist()
    for wide in ([most + 1], [0, np.iinfo(dtype).max]):
        with pytest.raises(ConfigError, match="32 bits"):
            device.copy({"val": np.array(wide, dtype)})
    jax.config.update("jax_enable_x64", True)
    try:
        found = np.asarray(device.keep(np.array([most + 1], dtype)))
    finally:
        jax.config.update("jax_enable_x64", False)
    assert found.tolist() == [most + 1] and found.dtype == dtype


def test_a_device_object_says_its_framework(framework):
    if framework == "torch":
        import torch

        own = torch.device("cpu")
    else:
        import jax

        own = jax.devices("cpu")[0]
    other = next(name for name in FRAMEWORKS if name != framework)
    assert type(device_of(None, own)) is type(device_of(framework, "cpu"))
    with pytest.raises(ConfigError, match=f"with a device of {framework}"):
        device_of(other, own)
    with pytest.raises(ConfigError, match="no device"):
        device_of(framework, "abacus")
    assert device_of(framework, own).free_bytes() is None


def test_what_is_no_framework_or_is_not_installed(monkeypatch):
    for framework in (None, "numpy", 3):
        with pytest.raises(ConfigError, match="framework"):
            device_of(framework, None)
    for framework in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, framework, None)
        with pytest.raises(MissingExtra, match=framework) as error:
            device_of(framework, None)
        assert error.value.hint == f"pip install 'ignitetf[{framework}]'"


def test_what_a_device_cannot_hold_is_named():
    number = DenseNode(np.dtype("i4"), ())
    check_dense("C", StructNode((("A", number),)), {"V": number}, False)
    check_dense("C", None, {}, False)
    with pytest.raises(ConfigError, match="C: the key is text") as error:
        check_dense("C", StructNode((("A", number), ("B", TextNode()))), {"V": number}, False)
    assert "keys=False" in error.value.hint
    with pytest.raises(ConfigError, match="C: R is lists") as error:
        check_dense("C", number, {"R": RunsNode(number), "S": TextNode(), "V": number}, False)
    assert "fields=['V']" in error.value.hint
    with pytest.raises(ConfigError, match="C: val is text") as error:
        check_dense("C", None, {"val": TextNode()}, True)
    assert "fields" not in error.value.hint
