"""Stop Keras from writing HDF5 files for `igfs://` into a local folder named `igfs:`.

h5py opens paths itself, and silently. The Keras functions that allow this are wrapped when their
module is imported, so that nothing is imported for users without Keras. Legacy `.h5` models are
refused; `.weights.h5` files go through a local folder (the newest Keras does that itself).
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ignitetf.post_import import when_imported

__all__ = ["install"]

_MODULES = frozenset(
    {
        "keras.src.legacy.saving.legacy_h5_format",
        "keras.src.saving.legacy.hdf5_format",
        "keras.src.saving.saving_lib",
        "tf_keras.src.saving.legacy.hdf5_format",
        "tf_keras.src.saving.saving_lib",
    }
)


def install() -> None:
    """Wrap the functions, now or as soon as their module is imported."""
    for name in sorted(_MODULES):
        when_imported(name, _wrap)


def _wrap(module: ModuleType) -> None:
    for name, wrapper in _WRAPPERS.items():
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "igfs_guard"):
            wrapped = wrapper(function)
            wrapped.igfs_guard = True  # type: ignore[attr-defined]
            setattr(module, name, wrapped)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, str) and value.startswith("igfs://"):
                raise ValueError(
                    f"{value}: legacy .h5 files cannot be kept in igfs://; "
                    "save as .keras, or the weights as .weights.h5"
                )
        return function(*args, **kwargs)

    return checked


def _through_a_file(function: Callable[..., Any]) -> Callable[..., Any]:
    """Save to a local folder, or load from one; both functions take the model and then the path.

    Weights split into several files are all copied; Keras itself copies only their index.
    """
    saves = function.__name__.startswith("save")

    @functools.wraps(function)
    def copying(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        remote = str(filepath)
        if not (remote.startswith("igfs://") and remote.endswith((".h5", ".json"))):
            return function(model, filepath, *args, **kwargs)
        import tensorflow as tf

        copy = tf.io.gfile.copy
        where, _, name = remote.rpartition("/")
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, name)
            if not saves:
                copy(remote, str(local))
                for shard in _shards(local):
                    copy(f"{where}/{shard}", str(local.with_name(shard)))
            result = function(model, str(local), *args, **kwargs)
            # Copy the index last, so that it never names files that are missing.
            written = sorted(Path(folder).iterdir(), key=lambda path: path.suffix == ".json")
            for path in written if saves else ():
                copy(str(path), f"{where}/{path.name}", overwrite=True)
        return result

    return copying


def _shards(index: Path) -> list[str]:
    """Return the names of the files in an index of weights; empty if this is not an index."""
    if index.suffix != ".json":
        return []
    places = json.loads(index.read_bytes())["weight_map"].values()
    every = {name for place in places for name in (place if isinstance(place, list) else [place])}
    return sorted(Path(name).name for name in every)


_WRAPPERS = {
    "save_model_to_hdf5": _refusing,
    "load_model_from_hdf5": _refusing,
    "save_weights_only": _through_a_file,
    "load_weights_only": _through_a_file,
}
