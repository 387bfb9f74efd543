"""Statistics of columns."""

import numpy as np

from ignitetf.explore.stats import batch_stats
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import Schema, field_for


def test_nan_is_one_value_in_however_many_pages():
    schema = Schema("T", field_for("key", np.dtype(np.int64)), (field_for("X", np.dtype("<f8")),))
    pages = (
        Batch(None, {"X": Dense(np.array([np.nan, 1.0, np.nan, value]))}) for value in (2.0, 3.0)
    )
    found = batch_stats(schema, pages)["X"]
    assert (found.distinct, found.nan) == (4, 4)
    assert found.top == {"nan": 4, "1.0": 2, "2.0": 1, "3.0": 1}
