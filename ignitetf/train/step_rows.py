"""Convert between the steps of `fit` and the rows that they train.

**step rows** -> backup

A strategy over several workers divides each batch by the number of workers and trains the parts one
after the other, a step each. So a step has a part of a batch of each worker's own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepRows"]


@dataclass(frozen=True)
class StepRows:
    """The rows of each step of a worker.

    Attributes:
        batch_size: Rows of a batch.
        parts: Steps that train one batch: the number of workers if a strategy divides batches,
            otherwise 1.
        drop_remainder: True if an incomplete last batch is skipped.
    """

    batch_size: int
    parts: int = 1
    drop_remainder: bool = False

    def count(self, rows: int) -> int:
        """Return the number of steps that train a worker's `rows` rows."""
        batches, rest = divmod(rows, self.batch_size)
        # Parts of the last batch without rows are the last ones, and are not trained.
        last = 0 if self.drop_remainder or not rest else -(-rest // self._part(rest))
        return batches * self.parts + last

    def trained(self, steps: int, rows: int) -> int:
        """Return how many of a worker's `rows` rows the first `steps` steps train."""
        batches, more = divmod(steps, self.parts)
        begun = batches * self.batch_size
        batch = max(0, min(self.batch_size, rows - begun))
        return min(begun, rows) + min(more * self._part(batch), batch)

    def _part(self, batch: int) -> int:
        """Return the number of rows in each part of a batch; the last may have fewer, or none."""
        return -(-batch // self.parts)
