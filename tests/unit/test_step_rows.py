"""The rows of each step, as TensorFlow divides batches."""

import itertools

import pytest

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("drop", [False, True])
def test_steps_have_the_rows_that_a_strategy_gives_them(workers, drop):
    from tensorflow.python.data.experimental.ops.distribute import _LegacyRebatchDataset

    from ignitetf.train.step_rows import StepRows

    for batch, rows in (4, 0), (4, 5), (4, 8), (7, 24), (12, 12), (12, 29):
        steps = StepRows(batch, workers, drop)
        dataset = tf.data.Dataset.range(rows).batch(batch, drop_remainder=drop)
        sizes = [len(part) for part in _LegacyRebatchDataset(dataset, workers)]
        while not drop and rows % batch and sizes and not sizes[-1]:
            sizes.pop()  # parts without rows at the end
        assert steps.count(rows) == len(sizes)
        trained = [steps.trained(done, rows) for done in range(len(sizes) + 1)]
        assert trained == list(itertools.accumulate(sizes, initial=0))
