"""Rows of many types: those of the fixture `typed_rows`."""

import numpy as np

ROWS = 330


def record(number):
    return {
        "A": np.int64(number * number),
        "S": f"s{number}" * (number % 4),
        "V": np.arange(number % 5, dtype=np.float32),
        "U2": np.uint16(65_535 - number),
        "U4": np.uint32(2**32 - 1 - number),
        "LABEL": np.int32(number % 7),
    }
