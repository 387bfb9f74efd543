"""How the partitions of a scan are dealt out to its connections."""

import itertools
import uuid

from hypothesis import given
from hypothesis import strategies as st

from ignitetf.read.scan import assign_readers

NODES = [uuid.UUID(int=n) for n in range(1, 5)]


@given(
    count=st.integers(0, 200),
    nodes=st.integers(0, 4),
    readers=st.integers(1, 9),
    run=st.integers(1, 120),
    data=st.data(),
)
def test_each_partition_has_one_reader_which_stays_with_a_node(count, nodes, readers, run, data):
    partitions = data.draw(st.permutations(range(count)))
    owners = {p: NODES[(p * 7) % nodes] for p in range(count)} if nodes else {}
    shares = assign_readers(owners, partitions, readers, run)
    assert sorted(itertools.chain.from_iterable(shares)) == list(range(count))
    for share in shares:
        assert share == sorted(share)
        assert len({owners.get(partitions[unit]) for unit in share}) <= 1
    if count:
        assert all(shares)
        assert len(shares) <= max(readers, nodes)


@given(st.integers(1, 2_000), st.integers(2, 8), st.integers(1, 120))
def test_readers_take_turns_in_runs(count, readers, run):
    shares = assign_readers({}, range(count), readers, run)
    sizes = [len(share) for share in shares]
    reader_of = {unit: reader for reader, share in enumerate(shares) for unit in share}
    turns = [
        (n, len(list(units))) for n, units in itertools.groupby(map(reader_of.get, range(count)))
    ]
    assert [reader for reader, _ in turns] == [n % readers for n in range(len(turns))]
    lengths = {length for _, length in turns[:-1]}
    assert len(lengths) <= 1 and all(length <= run for length in lengths)
    # Nobody waits long at the end while others still read.
    assert max(sizes) - min(sizes, default=0) <= max(1, count // (4 * readers))
    assert len(sizes) == readers or max(sizes) == 1
