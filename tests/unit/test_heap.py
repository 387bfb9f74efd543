"""What readers ask of a node's heap is bounded, however many they are."""

from hypothesis import given
from hypothesis import strategies as st

from ignitetf.net.heap import LEAF_ROWS, connections_at_once, scan_bytes
from ignitetf.partitions import LARGE_ROW_BYTES
from ignitetf.read.options import PAGE_BYTES, page_bytes_for

ROW_BYTES = st.integers(1, 1 << 26)
NUMBERS = st.integers(1, 2000)


@given(ROW_BYTES, NUMBERS, NUMBERS)
def test_two_pages_for_each_connection_fit_or_are_the_smallest(row_bytes, rows, connections):
    nbytes = row_bytes * rows
    page = page_bytes_for(row_bytes, nbytes, connections)
    assert PAGE_BYTES <= page <= page_bytes_for(row_bytes, nbytes, max(1, connections - 1))
    assert 2 * connections * page <= 64 << 20 or page == PAGE_BYTES
    if connections <= 2 and row_bytes >= LARGE_ROW_BYTES:
        assert page == 16 << 20
    elif connections <= 4 and row_bytes < LARGE_ROW_BYTES:
        assert page == (8 << 20 if nbytes >= 16 << 20 else PAGE_BYTES)


@given(ROW_BYTES, NUMBERS, NUMBERS, st.integers(1, 100))
def test_scans_and_smallest_pages_of_all_connections_fit(row_bytes, partition_rows, shards, nodes):
    scan = scan_bytes(row_bytes, partition_rows)
    assert scan == row_bytes * min(partition_rows, LEAF_ROWS)
    to_each = connections_at_once(scan, PAGE_BYTES, shards, nodes) / nodes
    asked, more = 2 * shards * to_each, 2 * shards * (to_each + 1)
    assert asked * scan <= 512 << 20 and asked * PAGE_BYTES <= 64 << 20
    assert more * scan > 512 << 20 or more * PAGE_BYTES > 64 << 20
