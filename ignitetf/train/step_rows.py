"""How many steps of `fit` train how many rows.

**step rows** -> backup

A strategy over several workers divides each batch by them and trains the parts one after the other,
in as many steps. So a step has a part of a batch of each worker's own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepRows"]


@dataclass(frozen=True)
class StepRows:
    """The rows of each step of a worker.

    Attributes:
        batch_size: Rows of a batch.
        parts: In how many steps a batch is trained: the number of workers under such a strategy,
            else 1.
        drop_remainder: Whether an incomplete last batch is left out.
    """

    batch_size: int
    parts: int = 1
    drop_remainder: bool = False

    def count(self, rows: int) -> int:
        """Return the number of steps that train a worker's `rows` rows."""
        batches, rest = divmod(rows, self.batch_size)
        # The parts of the last batch that have no rows come last, and nobody has to train them.
        last = 0 if self.drop_remainder or not rest else -(-rest // self._part(rest))
        return batches * self.parts + last

    def trained(self, steps: int, rows: int) -> int:
        """Return how many of a worker's `rows` rows the first `steps` steps have."""
        batches, more = divmod(steps, self.parts)
        begun = batches * self.batch_size
        batch = max(0, min(self.batch_size, rows - begun))
        return min(begun, rows) + min(more * self._part(batch), batch)

    def _part(self, batch: int) -> int:
        """Return the rows of the parts of a batch; the last may have fewer, or none."""
        return -(-batch // self.parts)
