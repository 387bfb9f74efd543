"""The digits data set that ships with scikit-learn: 1,797 real images of 8 x 8, offline.

scikit-learn -> **two splits** -> ArraySource

The split is one fixed permutation, so every load on every machine has the same rows.
"""

from __future__ import annotations

import numpy as np

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.load.sources.arrays import ArraySource
from ignitetf.tables.storage import OnBadRecord

__all__ = ["digits", "open_digits"]

_SEED = 1797
_TRAIN_SHARE = 0.8


def open_digits(
    location: None = None, split: str = "train", bad_records: OnBadRecord = "fail"
) -> ArraySource:
    """Open `digits` as `open_source` does; the location is ignored, and no record is bad."""
    if location is not None:
        raise ConfigError("source 'digits' has no location: it comes with scikit-learn")
    return digits(split, bad_records)


def digits(split: str = "train", bad_records: OnBadRecord = "fail") -> ArraySource:
    """Return one split of the digits: IMAGE uint8 [8, 8, 1] with values 0..16, LABEL int32.

    Args:
        split: "train" (1,438 rows), "test" (359 rows) or "all".
        bad_records: As for every source; the data are known to be good.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra(
            "the digits data set needs scikit-learn", hint='pip install "ignitetf[all]"'
        ) from error
    data = load_digits()
    count = len(data.target)
    order = np.random.RandomState(_SEED).permutation(count)
    cut = round(count * _TRAIN_SHARE)
    chosen = {"train": order[:cut], "test": order[cut:], "all": np.arange(count)}.get(split)
    if chosen is None:
        raise ConfigError(f"digits has no split {split!r}", hint="take 'train', 'test' or 'all'")
    images = data.images[chosen].astype(np.uint8)[..., np.newaxis]
    return ArraySource(
        {"IMAGE": images, "LABEL": data.target[chosen].astype(np.int32)},
        type_name=f"Digits{split.capitalize()}",
        class_names=[str(name) for name in data.target_names],
        bad_records=bad_records,
    )
