"""Columns and records as `(features, label)`, for loaders without TensorFlow.

export -> **supervised** -> torch, grain, train
"""

from __future__ import annotations

from typing import Any

from ignitetf.read.arguments import flag, label_of
from ignitetf.read.rows import EpochRows

__all__ = ["label_name", "with_label"]


def label_name(rows: EpochRows, as_supervised: Any) -> str | None:
    """Return the name of the label field, None unless `as_supervised`.

    Raises:
        ConfigError: There is not exactly one label beside other fields.
    """
    if not flag("as_supervised", as_supervised):
        return None
    return label_of(list(rows.values), rows.reader.name)


def with_label(columns: dict[str, Any], label: str | None) -> Any:
    """Return columns, or a record, as `(features, label)`; unchanged if there is no label.

    Features are a dict of the other fields, or the field itself if there is only one.
    """
    if label is None:
        return columns
    features = {name: column for name, column in columns["val"].items() if name != label}
    return (next(iter(features.values())) if len(features) == 1 else features), columns["val"][
        label
    ]
