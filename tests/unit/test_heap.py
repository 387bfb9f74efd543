"""What readers ask of a node's heap is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from ignitetf.net.topology import LEAF_ROWS, scan_bytes, scans_at_once

NUMBERS = st.integers(1, 2000)


@given(st.integers(1, 1 << 26), NUMBERS)
def test_as_many_scans_as_fit_are_open_at_once(row_bytes, partition_rows):
    scan = scan_bytes(row_bytes, partition_rows)
    assert scan == row_bytes * min(partition_rows, LEAF_ROWS)
    fit = scans_at_once(scan)
    assert fit * scan <= 128 << 20 < (fit + 1) * scan
