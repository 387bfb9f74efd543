"""Data sets for PyTorch: rows by number, and the epochs of `open_rows`; without TensorFlow.

    from ignitetf.torch import IterableDataset, MapDataset

    images = MapDataset("MNIST_TRAIN", as_supervised=True)
    loader = DataLoader(images, batch_size=128, shuffle=True, num_workers=4)

process rows -> tensors -> **torch**
"""

from __future__ import annotations

from ignitetf.errors import MissingExtra

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtra.of("ignitetf.torch needs PyTorch", "torch", error) from error

from ignitetf.torch.iterable import IterableDataset
from ignitetf.torch.map_style import MapDataset

__all__ = ["IterableDataset", "MapDataset"]
