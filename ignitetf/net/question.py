"""`Question`: a request that changes nothing, and what its answer means.

**question** -> pool -> client, tables

Several questions go over one connection at once, and so take a single round trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from ignitetf.errors import ServerError
from ignitetf.wire.codes import Feature, OpCode

__all__ = ["Question"]

T = TypeVar("T")


def _raised(error: ServerError) -> NoReturn:
    raise error


@dataclass(frozen=True)
class Question(Generic[T]):
    """What is asked, and how its answer is read.

    Attributes:
        op: The request.
        body: Its body.
        read: Reads the body of the answer.
        refused: Returns what an error means, or raises it.
        needs: What the cluster must have; one that lacks it counts as having refused.
    """

    op: OpCode
    body: bytes
    read: Callable[[memoryview], T]
    refused: Callable[[ServerError], T] = _raised
    needs: Feature | None = None

    def answered(self, answer: memoryview | ServerError) -> T:
        """Return what an answer means."""
        return self.refused(answer) if isinstance(answer, ServerError) else self.read(answer)
