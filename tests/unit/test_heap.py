"""What readers ask of a node's heap is bounded, however many they are."""

from hypothesis import given
from hypothesis import strategies as st

from ignitetf.partitions import LARGE_ROW_BYTES
from ignitetf.read.heap import LEAF_ROWS, connections_at_once
from ignitetf.read.options import PAGE_BYTES, page_bytes_for

ROW_BYTES = st.integers(1, 1 << 26)
NUMBERS = st.integers(1, 2000)


@given(ROW_BYTES, NUMBERS)
def test_two_pages_for_each_connection_fit_or_are_the_smallest(row_bytes, connections):
    page = page_bytes_for(row_bytes, connections)
    assert PAGE_BYTES <= page <= page_bytes_for(row_bytes, max(1, connections - 1))
    assert 2 * connections * page <= 64 << 20 or page == PAGE_BYTES
    if row_bytes < LARGE_ROW_BYTES:
        assert page == PAGE_BYTES
    elif connections <= 2:
        assert page == 16 << 20


@given(ROW_BYTES, NUMBERS, NUMBERS)
def test_the_scans_of_all_connections_fit(row_bytes, partition_rows, processes):
    fit = connections_at_once(row_bytes, partition_rows, processes)
    scan = 2 * row_bytes * min(partition_rows, LEAF_ROWS)
    assert fit * processes * scan <= 512 << 20
    assert (fit + 1) * processes * scan > 512 << 20
