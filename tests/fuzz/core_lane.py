"""Feeds damaged pages to the lanes of the core: `core_lane.py SEED FIRST COUNT`, for a process alone.

Every `WHOLE`-th page is left as it is, and its rows must be those of the general decoder. For all
others, no memory may be touched that is not theirs, which `test_fuzz_core.py` has watched; what the
core leaves to the decoder is not decoded there, as `test_fuzz_wire.py` damages pages for that.
"""

import random
import struct
import sys

import numpy as np
from fuzzing import damage
from test_fuzz_wire import answer_of, captured, generated, large_rows, look, registry_of

from ignitetf._core import UNIT, Event, Landing, Lane
from ignitetf.errors import SchemaError
from ignitetf.read.landing import Left, RowLayout
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.decode import Decoder
from ignitetf.wire.frames import Page, read_page
from ignitetf.wire.objects import object_end
from ignitetf.wire.types import UnknownType

WHOLE = 16
FIRST_ID = 1 << 40
HEAD = struct.Struct("<iqhq")  # length, request, flags, cursor
KEY_HEAD = struct.Struct("<iqh")


class Answer:
    """What a node sends: some bytes at a time."""

    def __init__(self, rng, data):
        self.rng, self.data, self.at = rng, data, 0

    def receive(self, view):
        size = self.rng.choice((1, 7, 100, 4096, 1 << 20))
        piece = self.data[self.at : self.at + min(size, len(view))]
        view[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)


def keys_of(page):
    """The keys of a page as they are requested, one behind the other, and where each begins."""
    view, at, found = memoryview(page.data), 0, []
    for _ in range(page.count):
        end = object_end(view, at)
        wrapped = view[at] == TypeCode.WRAPPED
        found.append(bytes(view[at + 5 : end - 4] if wrapped else view[at:end]))
        at = object_end(view, end)
    return b"".join(found), np.cumsum([0, *map(len, found)])


def landing_of(rng, layout, rows, keys):
    units = np.zeros(1, UNIT)
    known = keys is not None or rng.random() < 0.5
    units["rows"], units["lane"] = rows if known else -1, -1
    units["expected"] = 1000
    places = np.array(rng.sample(range(rows), rows), np.int64) if known else None
    return Landing(
        layout.native, units, places, *(keys or (None, None)), rows if known else -1, 8, 1 << 20,
        1 << 20, keys is None, 0, OpCode.QUERY_SCAN_PAGE,
    ), places  # fmt: skip


def lane_of(rng, landing, answer, keys):
    body = HEAD.pack(len(answer) + 18, FIRST_ID, 0, 5) + answer
    if keys is not None:  # no cursor, and no word of more pages
        body = KEY_HEAD.pack(len(answer) + 9, FIRST_ID, 0) + answer[:-1]
    return Lane(
        landing, 0, -1, Answer(rng, body).receive, lambda _: None, np.zeros(1, np.int64), b"x" * 20,
        np.array([0, 20]), FIRST_ID, 60.0, 0.0, 1 << 20, 1 << 20, 1 << 20, 120,
    )  # fmt: skip


def read(rng, layout, answer, decoder=None, keys=None):
    """Read an answer to its end.

    Returns:
        The batches that a lane lands, if there is a decoder for what the core leaves, and the places
        of their rows; None if it says no.
    """
    rows = struct.unpack_from("<i", answer.ljust(4, b"\0"))[0] if keys is None else len(keys[1]) - 1
    landing, places = landing_of(rng, layout, rows if 0 < rows < 4096 else 1, keys)
    lane = lane_of(rng, landing, answer, keys)
    left = Left(layout.rows)
    while (event := lane.run())[0] in (Event.UNKNOWN, Event.LEFT):
        if event[0] == Event.UNKNOWN:
            learn(layout, *event[2:5])
            continue
        entries, at, absent, _ = lane.left()
        at, absent = (np.frombuffer(given or b"", np.int64) for given in (at, absent))
        known = at >= 0  # a key that was not requested has no place
        if decoder is not None:
            page = Page(len(at), False, np.frombuffer(entries or b"", np.uint8))
            left.add(at[known], decoder.decode(page)[np.flatnonzero(known)])
        landing.count(np.concatenate([at[known], absent if places is None else places[absent]]))
    found = []
    while taken := landing.take(0.0):
        if decoder is not None:
            found.append(layout.batch(taken, left.take(taken[0] // layout.rows)))
    return (found, places) if event[0] == Event.DONE else None


def learn(layout, *form):
    try:
        layout.learn(*form)
    except (UnknownType, SchemaError):
        layout.native.add_form(*form, None, None)


def compare(schema, registry, answer, found):
    batches, places = found
    page = read_page(memoryview(answer))
    whole = look(Decoder(schema, registry).decode(page), page.count)
    landed = {}
    for batch in batches:
        for name, values in look(batch, len(batch)).items():
            landed.setdefault(name, []).extend(values)
    order = range(page.count) if places is None else places.tolist()
    for name, values in whole.items():
        assert [landed[name][place] for place in order] == values, name


def main(seed, first, count):
    kept = [(*item, None) for item in captured()]
    for number in range(first, first + count):
        rng = random.Random(seed * 1_000_003 + number)
        if number % 64 == 0:
            item = generated(rng)
            if rng.random() < 0.1:
                schema, batch = large_rows(rng)
                item = schema, registry_of(schema), answer_of(schema, batch)
            kept = [*kept[-20:], (*item, None)]
        at = rng.randrange(len(kept))
        schema, registry, answer, layout = kept[at]
        if layout is None or number % 256 == 0:
            layout = RowLayout(schema, registry, rng.choice((1, 3, 64)), 100.0)
            kept[at] = schema, registry, answer, layout
        keys = None
        if rng.random() < 0.4 and (page := read_page(memoryview(answer))).count:
            keys = keys_of(page)
        if number % WHOLE == 0:
            found = read(rng, layout, answer, Decoder(schema, registry), keys)
            assert found is not None, f"input {number}"
            compare(schema, registry, answer, found)
        else:
            read(rng, layout, damage(rng, answer), keys=keys)
    print(f"{count:,} pages, seed {seed}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
