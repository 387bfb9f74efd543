"""Feeds damaged pages to the lanes of the core: `core_lane.py SEED FIRST COUNT`, for a process alone.

Needs the core that `test_fuzz_core.py` compiles: with sanitizers, and with `native/feed.c` in place
of sockets, which damages the pages. No memory may be touched that is not theirs, which the sanitizers
watch; runs of bytes that land are inside their heaps. Pages that are left as they are must be read,
and their rows be those of the general decoder. What the core leaves to the decoder of a damaged page
is not decoded here, as `test_fuzz_wire.py` damages pages for that.

The pages come in blocks of `BLOCK`, each with layouts, forms and generated rows of its own. A block
depends on its number and the seed alone: for a page that fails, begin with the first of its block.
"""

import ctypes
import enum
import faulthandler
import gc
import random
import struct
import sys
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from test_fuzz_wire import answer_of, captured, generated, large_rows, look, registry_of

from ignitetf._core import UNIT, Event, Landing, Lane, _native
from ignitetf.errors import SchemaError
from ignitetf.read.landing import Left, RowLayout
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.columns import Runs
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import Page, read_page
from ignitetf.wire.objects import extents, object_end
from ignitetf.wire.schema import BYTES, Field
from ignitetf.wire.types import UnknownType

BLOCK = 1 << 17
LONGEST_S = 120  # of 1,024 pages, on a busy machine
FIRST_ID = 1 << 40
# After the length of an answer: request, flags; topology if the flags say so; cursor of a first page.
HEAD, TOPOLOGY, CURSOR = struct.Struct("<qh"), struct.Struct("<qi"), struct.Struct("<q")
PAGE_ROWS = AHEAD = 1 << 20  # nothing waits for a consumer
RECEIVED = (1 << 20, 1 << 20, 1 << 20, 4096, 100, 7, 1)
NUMBERS, FRAMES, FRAME_AT = np.arange(2), b"x" * 40, np.arange(0, 60, 20)
UNIT_OF = struct.Struct("<10q2i")
assert UNIT_OF.size == UNIT.itemsize
REAL, COLUMNS_AT_ONCE = 24, 5
LARGE = (33_000, 33_000, 300_000)  # more than is received at a time
LIB = ctypes.CDLL(_native.__file__)
LIB.feed_answer.restype = LIB.feed_size.restype = ctypes.c_int64
LIB.feed_bytes.restype = ctypes.c_void_p
LIB.feed_take.restype = ctypes.c_int64
_I64, _PTR = ctypes.c_int64, ctypes.c_void_p
LIB.feed_begin.argtypes = ctypes.c_uint64, _I64
LIB.feed_answer.argtypes = _PTR, _I64, _PTR, _I64, _PTR, _I64, _I64
LIB.feed_damage.argtypes = _PTR, _I64
LIB.feed_take.argtypes = _PTR, _I64
LIB.feed_arriving.argtypes = (ctypes.py_object,)


def spots_of(view, columns=2):
    """Where lengths, counts, type codes and offsets of a page are, and its beginning and end."""
    spots, at = [0, 0, len(view) - 1], 4
    for _ in range(struct.unpack_from("<i", view)[0] * columns):
        end = object_end(view, at)
        value = at + 5 if view[at] == TypeCode.WRAPPED else at
        spots += [at, at + 1]
        if view[value] == TypeCode.OBJECT:
            (footer,) = struct.unpack_from("<i", view, value + 20)
            size = struct.unpack_from("<i", view, value + 12)[0]
            flags = view[value + 2]
            width = 1 if flags & 8 else 2 if flags & 16 else 4
            fields = list(range(value + footer, value + size, width))[:40]
            spots += [
                value,
                value + 2,
                value + 4,
                value + 12,
                value + 16,
                value + 20,
                *fields,
                end - 4,
            ]
            for place in fields:
                offset = int.from_bytes(view[place : place + width], "little")
                spots += [value + offset, value + offset + 1] * (24 <= offset < footer)
        at = end
    return np.array(spots, np.int32)


class Memory:
    """An array, and where it is."""

    def __init__(self, array):
        self.array, self.at, self.size = array, array.ctypes.data, len(array)

    def __len__(self):
        return self.size


HEAD_SPOTS = Memory(np.array([0, 4, 12, 14, 22, 26], np.int32))


@dataclass
class Item:
    """A page, and what its lanes share: where damage does most, its keys, a layout that knows it."""

    schema: object
    registry: object
    page: Memory
    spots: Memory
    rows: int
    keys: tuple
    with_more: Memory
    large: bool
    layout: RowLayout | None = None
    mark: int = 0  # of its keys


def item_of(schema, registry, answer):
    view = memoryview(answer)
    return Item(
        schema, registry, Memory(np.frombuffer(answer, np.uint8)), Memory(spots_of(view)),
        struct.unpack_from("<i", answer)[0], keys_of(view),
        Memory(np.frombuffer(answer[:-1] + b"\1", np.uint8)), len(answer) > LARGE[0],
    )  # fmt: skip


def entries_of(view):
    """The bounds of the entries of a page, and of their keys without what wraps them."""
    at, found = 4, []
    for _ in range(struct.unpack_from("<i", view)[0]):
        end = object_end(view, at)
        key = (at + 5, end - 4) if view[at] == TypeCode.WRAPPED else (at, end)
        begin, at = at, object_end(view, end)
        found.append((begin, at, key))
    return found


def keys_of(view):
    """The keys of a page as they are requested, one behind the other, and where each begins."""
    keys = [bytes(view[p:q]) for *_, (p, q) in entries_of(view)]
    return b"".join(keys), np.cumsum([0, *map(len, keys)])


def small_pages(answer, rng):
    """Some of the rows of a page, as pages."""
    view = memoryview(answer)
    entries = entries_of(view)
    while entries:
        some = [entries.pop(0) for _ in range(min(len(entries), rng.randint(1, 4)))]
        yield struct.pack("<i", len(some)) + bytes(view[some[0][0] : some[-1][1]]) + b"\0"


def columns_of(schema, registry):
    """The fields of a schema that the core can land, and one by one how else they can be read."""
    found = []
    for one in schema.fields:
        ways = [one]
        if one.type == TypeCode.UUID:
            ways.append(replace(one, dtype=BYTES, shape=()))
        for way in ways:
            try:
                if RowLayout(replace(schema, fields=(way,)), registry, 1, 1.0).lands:
                    found.append(way)
            except (SchemaError, ValueError, KeyError):
                continue
    return found


def real_items(rng):
    """Small pages of captured rows, each read as some of the columns that the core can land."""
    found = []
    for schema, registry, answer in captured():
        wide = columns_of(schema, registry) if schema.type_name is not None else []
        for page in small_pages(answer, rng):
            found.append(item_of(schema, registry, page))
            found.append(item_of(replace(schema, fields=()), registry, page))  # keys alone
            if not wide:
                continue
            for _ in range(2):
                some = {
                    f.name: f
                    for f in rng.sample(wide, min(len(wide), rng.randint(1, COLUMNS_AT_ONCE)))
                }
                narrow = replace(schema, fields=tuple(some[name] for name in sorted(some)))
                found.append(item_of(narrow, registry, page))
    return found


def as_unsigned(one):
    """Return a number of 2 to 8 bytes as one of half its size, which small numbers fit."""
    if one.shape or one.dtype.kind != "i" or one.dtype.itemsize == 1:
        return one
    return replace(one, dtype=np.dtype(f"<u{one.dtype.itemsize // 2}"))


def made_items(rng):
    """Pages of rows that are made for a block."""
    for number in range(14):
        schema, registry, answer = generated(rng)
        if number % 2:
            schema = replace(schema, fields=tuple(map(as_unsigned, schema.fields)))
        if number % 3 == 0:  # a field that other rows of the cache have
            kind = ((TypeCode.INT, np.dtype("<i4")), (TypeCode.STRING, BYTES))[number % 2]
            schema = replace(schema, fields=(*schema.fields, Field("LACKS", *kind, (), True)))
        yield item_of(schema, registry, answer)
    for size in LARGE:
        schema, batch = large_rows(rng, size)
        yield item_of(schema, registry_of(schema), answer_of(schema, batch))


class Plan(enum.IntEnum):
    """What is requested, and how it is answered."""

    ROWS = 0  # a known number of rows
    PLACED = 1  # the same, at any places
    OPEN = 2  # nobody knows how many
    KEYS = 3
    KEYS_PLACED = 4
    PAGES = 5  # two pages of a cursor
    UNITS = 6  # two cursors; the second is answered first
    REPLAYED = 7  # two pages; the rows of the first were delivered before
    ERROR = 8


GOES_ON = frozenset((Event.UNKNOWN, Event.LEFT))
WHOLE = tuple(Plan)[: Plan.REPLAYED]
DOUBLE = frozenset((Plan.PAGES, Plan.UNITS, Plan.REPLAYED))
WITH_MORE = frozenset((Plan.PAGES, Plan.REPLAYED))
UNKNOWN = frozenset((Plan.OPEN, Plan.UNITS))
KEYED, SHUFFLED = (
    frozenset((Plan.KEYS, Plan.KEYS_PLACED)),
    frozenset((Plan.PLACED, Plan.KEYS_PLACED)),
)


class Run:
    """One lane: feeds the answers to it, and reads them to their end."""

    def __init__(self, rng, item, plan, times):
        self.item, self.plan = item, plan
        keyed = plan in KEYED
        count = self.feed(rng, times, keyed)
        rows = item.rows
        if times and not keyed:
            kind = rng.random()
            rows = count if 0 <= count < 4096 and kind < 0.5 else rows
            rows += rng.choice((-1, 1)) if kind > 0.95 and rows else 0
        known = plan not in UNKNOWN
        if plan == Plan.PAGES and times:
            known = rng.random() > 0.01
        self.total = rows * (1 + (plan in DOUBLE))
        replay = (item.rows, item.mark) if plan == Plan.REPLAYED else (0, 0)
        # As numbers of `UNIT`, which is quicker than an array of it.
        units = UNIT_OF.pack(0, self.total if known else -1, 0, 0, 1000, 0, 0, 0, *replay, 0, -1)
        if plan == Plan.UNITS:
            units += UNIT_OF.pack(-1, -1, 0, 0, 1000, 0, 0, 0, 0, 0, 0, -1)
        self.units, count = bytearray(units), len(units) // UNIT_OF.size
        self.places = None
        if plan in SHUFFLED:
            self.places = np.array(rng.sample(range(rows), rows), np.int64)
        self.landing = Landing(
            item.layout.native, self.units, self.places, *(item.keys if keyed else (None, None)),
            self.total if known else -1, AHEAD, 1 << 20, PAGE_ROWS, not keyed, 0, OpCode.QUERY_SCAN_PAGE,
        )  # fmt: skip
        by_python = rng.random() < 0.02
        self.lane = Lane(
            self.landing, 0, -1 if by_python else 1 << 20, receive_by_python, take_request,
            NUMBERS[:count], FRAMES, FRAME_AT[: count + 1], FIRST_ID, 60.0, 0.0,
            1 << 20, 1 << 20, 1 << 20, 120,
        )  # fmt: skip

    def feed(self, rng, times, keyed):
        """Make the answers; returns the number of entries that the first says it has."""
        item, plan = self.item, self.plan
        flags = 2 * (rng.random() < 0.1) + (plan == Plan.ERROR)
        head = HEAD.pack(FIRST_ID + (plan == Plan.UNITS), flags)
        if flags & 2:
            head += TOPOLOGY.pack(3, 4)
        if not keyed:
            head += CURSOR.pack(5)
        page = item.with_more if plan in WITH_MORE else item.page
        first = times if plan not in DOUBLE or rng.random() < 0.8 else 0
        count = answer(head, page, item.spots, first, keyed)
        if plan in DOUBLE:
            head = HEAD.pack(FIRST_ID, 0) + (CURSOR.pack(6) if plan == Plan.UNITS else b"")
            answer(head, item.page, item.spots, times - first)
        if times and (plan == Plan.ERROR or rng.random() < 0.05):
            LIB.feed_damage(HEAD_SPOTS.at, len(HEAD_SPOTS))
        return count

    def read(self, left=None, decoder=None):
        """Run the lane to its end; returns its last event, and whether the decoder had some rows."""
        some = False
        run = self.lane.run
        while (event := run())[0] in GOES_ON:
            if event[0] == Event.UNKNOWN:
                learn(self.item.layout, *event[2:5])
                continue
            some = True
            entries, at, absent, _ = self.lane.left()
            at, absent = (np.frombuffer(given or b"", np.int64) for given in (at, absent))
            known = at >= 0  # a key that was not requested has no place
            if decoder is not None:
                page = Page(len(at), False, np.frombuffer(entries or b"", np.uint8))
                left.add(at[known], decoder.decode(page)[np.flatnonzero(known)])
            absent = absent if self.places is None else self.places[absent]
            self.landing.count(np.concatenate([at[known], absent]))
        return event, some


def unasked(item):
    """An answer to a request that was not sent, or was answered before, is refused."""
    for number in (FIRST_ID - 1, FIRST_ID + 2, 2**63 - 1, -(2**63), FIRST_ID):
        run = Run(random.Random(1), item, Plan.UNITS, 0)
        LIB.feed_begin(1, 1 << 20)
        for _ in range(2):
            answer(HEAD.pack(number, 0) + CURSOR.pack(5), item.page, item.spots, 0)
        event = run.lane.run()
        while event[0] in GOES_ON:
            run.lane.left()
            event = run.lane.run()
        refused = event[5].endswith(b"a request that was not sent")
        assert event[0] == Event.DAMAGED and refused, event
        run.lane.drain()


class Reader:
    """Reads the pages of a seed, and counts what became of them."""

    def __init__(self, seed):
        self.seed, self.number = seed, 0
        self.real = real_items(random.Random(seed))
        self.outcomes = Counter()

    def block(self, number, pages):
        """Read some pages of a block."""
        rng = random.Random(f"{self.seed} {number}")
        items = [replace(item, layout=None) for item in rng.sample(self.real, REAL)]
        items += made_items(rng)
        for item in items:
            item.layout = RowLayout(item.schema, item.registry, rng.choice((1, 3, 64)), 100.0)
            for plan in WHOLE if not item.large else WHOLE[:1]:
                self.whole(rng, item, plan)
        unasked(items[0])
        gc.collect()
        gc.freeze()
        gc.disable()
        draw = np.random.default_rng(rng.getrandbits(32))
        which = draw.choice(len(items), BLOCK, p=weights(items)).tolist()
        shares = [0.002 if plan in (Plan.OPEN, Plan.UNITS) else 0.996 / 7 for plan in Plan]
        plans = draw.choice(len(Plan), BLOCK, p=shares).tolist()  # 8 MB for unknown rows
        for page in range(pages):
            self.number = number * BLOCK + page
            if page % 1024 == 0:
                faulthandler.dump_traceback_later(LONGEST_S, exit=True)
            self.damaged(rng, items[which[page]], Plan(plans[page]))
        faulthandler.cancel_dump_traceback_later()

    def whole(self, rng, item, plan):
        """A page that is as the node sent it: its rows are those of the decoder."""
        LIB.feed_begin(rng.getrandbits(63), rng.choice(RECEIVED))
        run = Run(rng, item, plan, 0)
        decoder, left, landed = Decoder(item.schema, item.registry), Left(item.layout.rows), {}
        event, _ = run.read(left, decoder)
        assert event[0] == Event.DONE, event
        item.mark = UNIT_OF.unpack_from(run.units)[6] if plan == Plan.ROWS else item.mark
        while taken := run.landing.take(0.0):
            batch = item.layout.batch(taken, left.take(taken[0] // item.layout.rows))
            for name, values in look(batch, len(batch)).items():
                landed.setdefault(name, []).extend(values)
        page = read_page(memoryview(item.page.array.tobytes()))
        order = range(run.total) if run.places is None else run.places.tolist()
        for name, values in look(decoder.decode(page), page.count).items():
            times = 1 + (plan in DOUBLE)
            assert [landed[name][place] for place in order] == values * times, name

    def damaged(self, rng, item, plan):
        chance = rng.random()
        most = rng.choice(RECEIVED) if chance < 0.1 and not item.large else RECEIVED[0]
        LIB.feed_begin(rng.getrandbits(63), most)
        run = Run(rng, item, plan, 1 + int(chance * 1000) % 3)
        event, some = run.read()
        self.outcomes[event[0], event[5] if event[0] == Event.DAMAGED else b""] += 1
        if event[0] == Event.RESTART:
            LIB.feed_arriving(item.layout.native)
        elif event[0] != Event.DONE and chance < 0.3:
            run.lane.drain()
        if chance < 0.1 and not some:
            check_runs(item.layout, run.landing)
        if chance < 0.1:
            check_starts(item, self.number)


def check_runs(layout, landing):
    """What landed can be looked at: all runs are inside their heap."""
    while taken := landing.take(0.0):
        batch = layout.batch(taken, [])
        for column in (batch.key, *batch.columns.values()):
            if isinstance(column, Runs):
                ends = column.starts + column.lengths
                assert (column.starts >= 0).all() and (column.lengths >= 0).all()
                assert (ends <= len(column.items)).all()


def check_starts(item, number):
    """Objects of a damaged page are found in it, or it is refused."""
    sent = np.frombuffer(ctypes.string_at(LIB.feed_bytes(), LIB.feed_size()), np.uint8)
    begin = 4 + HEAD.size + CURSOR.size + 4
    page = sent[begin : -1 - number % 2].copy()  # an allocation of its own
    starts = np.empty(2 * item.rows, np.int64)
    if _native.object_starts(page, len(starts), extents(), starts):
        assert (np.diff(starts) > 0).all() and (starts >= 0).all() and (starts < len(page)).all()


def answer(head, page, spots, times, less=0):
    """Append an answer with a page, which is damaged some times; without its last `less` bytes."""
    return LIB.feed_answer(head, len(head), page.at, len(page) - less, spots.at, len(spots), times)


def receive_by_python(view):
    piece = (ctypes.c_char * len(view)).from_buffer(view)
    return LIB.feed_take(ctypes.addressof(piece), len(view))


def take_request(request):
    assert request


def learn(layout, *form):
    try:
        layout.learn(*form)
    except (UnknownType, SchemaError):
        layout.native.add_form(*form, None, None)


def weights(items):
    """Large pages are few, as each of them takes as long as many small ones."""
    found = np.array([4000 / len(item.page) if item.large else 1.0 for item in items])
    return found / found.sum()


def main(seed, first, count):
    assert first % BLOCK == 0, f"begin with the first page of a block, a multiple of {BLOCK:,}"
    reader = Reader(seed)
    try:
        for number in range(first // BLOCK, -(-(first + count) // BLOCK)):
            reader.block(number, min(BLOCK, first + count - number * BLOCK))
            print(f"block {number + 1:,}", file=sys.stderr, flush=True)
    except BaseException:
        print(f"page {reader.number:,} of seed {seed}", file=sys.stderr)
        raise
    print(f"{count:,} pages, seed {seed}")
    for (event, text), times in sorted(reader.outcomes.items(), key=lambda item: -item[1]):
        print(f"{times:>12,} {Event(event).name.lower()} {text.decode()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
