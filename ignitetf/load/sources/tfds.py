"""Metadata of `tensorflow_datasets` in a folder: names, types, shapes, classes of its records.

features.json -> **types of features, names of classes** -> tfrecord
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.load.sources.location import Place, reading

__all__ = ["Described", "described"]

_FILE: Final = "features.json"
_MAX_BYTES: Final = 64 << 20
_INTEGERS: Final = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)
_NUMBERS: Final = _INTEGERS | {"bool", "float16", "float32", "float64"}


@dataclass(frozen=True)
class Described:
    """Metadata of a folder.

    Attributes:
        types: Type of each feature with a type, in the form of `--features`.
        class_names: Names of the values of the feature `label`; None if it has none.
    """

    types: dict[str, str]
    class_names: list[str] | None


def described(folder: Place) -> Described | None:
    """Return the metadata of a folder; None if it has none.

    Raises:
        SourceError: They are damaged.
    """
    place = folder.child(_FILE)
    if not place.exists():
        return None
    with reading(place.name, "tensorflow_datasets writes it; remove it to infer the types again"):
        types = dict(_features(json.loads(place.read(_MAX_BYTES)), "", ()))
    names = folder.child("label.labels.txt")
    class_names = None
    if "label" in types and names.exists():
        with reading(names.name, "names of classes in UTF-8, a line each"):
            lines = names.read(_MAX_BYTES).decode().splitlines()
        class_names = [line for line in lines if line] or None
    return Described(types, class_names)


def _features(node: dict[str, Any], name: str, outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and type of each feature; the type is inferred later if it is not plain.

    Args:
        node: The description of a feature.
        name: Its name, with `/` between those of the dicts that it is in.
        outer: Lengths of the sequence that it is in, `?` if they differ.
    """
    if "featuresDict" in node:
        for key, inner in node["featuresDict"].get("features", {}).items():
            yield from _features(inner, f"{name}/{key}" if name else key, outer)
        return
    if "sequence" in node:
        if not outer:  # the values of sequences in sequences are in several features
            length = int(node["sequence"].get("length", -1))
            sizes = ("?",) if length < 1 else (str(length),)
            yield from _features(node["sequence"]["feature"], name, sizes)
        return
    if (found := _type(node, outer)) is not None:
        yield name, found


def _type(node: dict[str, Any], outer: tuple[str, ...]) -> str | None:
    """Return the type of a feature; None if it is unclear."""
    if "classLabel" in node:
        return _shaped("int64", outer)
    if "text" in node or "image" in node:
        return None if outer else ("string" if "text" in node else "bytes")
    content = node.get("tensor") or node.get("boundingBox")
    if content is None:
        return "float32[4]" if "boundingBox" in node and not outer else None
    dtype = str(content.get("dtype", "float32"))
    packed = content.get("encoding", "none") not in ("", "none")
    dims = [int(n) for n in content.get("shape", {}).get("dimensions", [])]
    sizes = (*outer, *("?" if n < 1 else str(n) for n in dims))
    if dtype not in _NUMBERS or packed or "?" in sizes[1:]:
        return None
    return _shaped(dtype, sizes)


def _shaped(dtype: str, sizes: tuple[str, ...]) -> str:
    return f"{dtype}[{','.join(sizes)}]" if sizes else dtype
