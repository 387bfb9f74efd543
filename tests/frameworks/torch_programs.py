"""A PyTorch loader whose worker process is killed; in a process of its own.

PyTorch raises the loss of a worker from a signal handler, wherever the program is.
"""

import json
import os
import signal
import sys

from torch.utils.data import DataLoader, get_worker_info

from ignitetf.torch import IterableDataset, MapDataset


class DyingMap(MapDataset):
    """Its process is killed when it reads row 50."""

    armed = True

    def __getitems__(self, indices):
        if self.armed and 50 in indices:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitems__(indices)


class DyingIterable(IterableDataset):
    """Its second process is killed after its third batch."""

    armed = True

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if self.armed and number == 3 and get_worker_info().id == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def main(kind, name, address):
    """Print what the lost worker raised, and the keys of the next epoch."""
    if kind == "map":
        made = DyingMap(name, address)
        loader = DataLoader(made, 10, num_workers=2, collate_fn=made.collate)
    else:
        made = DyingIterable(name, address, batch_size=10, order="keys")
        loader = DataLoader(made, batch_size=None, num_workers=2)
    errors = []
    for _ in range(3):
        try:
            keys = [key for batch in loader for key in batch["key"].tolist()]
            break
        except (RuntimeError, OSError, EOFError) as error:  # OSError: a tensor was on its way
            errors.append(repr(error))
            made.armed = False
    print(json.dumps({"errors": errors, "keys": keys}))


if __name__ == "__main__":
    main(*sys.argv[1:])
