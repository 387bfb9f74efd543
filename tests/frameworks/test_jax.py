"""JAX: the batches of `open_rows` go to a device as they are."""

import numpy as np
import pytest
from helpers.typed_rows import ROWS, record

from ignitetf import open_rows

jax = pytest.importorskip("jax", reason="needs JAX: pip install 'ignitetf[jax]'")
pytestmark = pytest.mark.node


@pytest.mark.parametrize("options", [{}, {"shuffle": 7}, {"order": "global", "shuffle": 7}])
def test_batches_stay_as_they_were_while_later_ones_are_read(address, mnist_parts, options):
    """JAX may share their memory, which the reader uses again only when nobody does."""
    rows = open_rows(mnist_parts[0], address, **options)
    wanted = [{n: v.copy() for n, v in b["val"].items()} for b in rows.batches(64)]
    for _ in range(3):
        found = [jax.device_put(batch["val"]) for batch in rows.batches(64)]
        assert len(found) == len(wanted)
        for batch, copy in zip(found, wanted, strict=True):
            assert batch.keys() == copy.keys()
            assert all(np.array_equal(np.asarray(batch[n]), copy[n]) for n in copy)


def test_numbers_and_lists_are_trees_of_arrays(address, typed_rows):
    rows = open_rows(typed_rows, address, order="keys", fields=["A", "V", "LABEL"])
    for batch in rows.batches(50):
        found = jax.device_put(batch["val"])
        offsets = found["V"].offsets.tolist()
        for i, key in enumerate(batch["key"].tolist()):
            part = found["V"].values[offsets[i] : offsets[i + 1]]
            assert part.tolist() == record(key)["V"].tolist()
            assert int(found["A"][i]) == key * key


def test_texts_have_to_be_left_out(address, typed_rows):
    batch = next(open_rows(typed_rows, address).batches(ROWS))
    with pytest.raises(TypeError):
        jax.device_put(batch["val"]["S"])
