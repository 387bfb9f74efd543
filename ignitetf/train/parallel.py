"""`data_parallel`: a script's part in a training on several workers, for the backend in use.

environment (of a launcher) -> **parallel** -> TensorFlow's strategy or Keras' distribution
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.train.keras_repair import repair_keras

__all__ = ["DataParallel", "data_parallel"]

_PLACE: Final = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


@dataclass(frozen=True)
class DataParallel:
    """A script's group of workers.

    Attributes:
        backend: `tensorflow` or `jax`.
        worker: Number of this worker; worker 0 saves and prints.
        workers: Their number.
        strategy: The `tf.distribute.Strategy`; None with JAX.
    """

    backend: str
    worker: int
    workers: int
    strategy: Any = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models and optimizers are created."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def batch(self, rows: int) -> int:
        """Return the argument of `IgniteDataset.batch` for global steps of `rows` rows.

        A strategy of TensorFlow divides batches itself; with JAX each worker reads its part.

        Raises:
            ConfigError: With JAX, the number of rows is not divisible by the number of workers.
        """
        if self.backend == "tensorflow":
            return rows
        if rows % self.workers:
            raise ConfigError(
                f"steps of {rows} rows cannot be divided among {self.workers} workers"
            )
        return rows // self.workers


def data_parallel() -> DataParallel:
    """Join the other workers of this script, with TensorFlow or JAX, whichever Keras uses.

        group = data_parallel()
        with group.scope():
            model = ...
        train = IgniteDataset("MNIST_TRAIN", even="drop").batch(group.batch(64))
        model.fit(train, shuffle=False)

    Call it once, before TensorFlow, JAX or Keras do anything; importing them is fine. The worker's
    number and the addresses of the others are read from `TF_CONFIG`, and with JAX from
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`, as `ignitetf launch` sets
    them. Without them the script runs alone. The backend is `KERAS_BACKEND`, otherwise that of
    Keras' own configuration.

    With TensorFlow this creates a `MultiWorkerMirroredStrategy` and repairs Keras 3 for it; a
    single worker keeps the default strategy. With JAX it joins the processes (on CPU through Gloo)
    and makes `keras.distribution.DataParallel` Keras' distribution, without sharding of data, which
    `IgniteDataset` and `open_rows` do. With JAX each worker must have the same number of steps: use
    `even=` or a `global` order.

    Raises:
        ConfigError: The backend is another one, or the environment is incomplete.
        MissingExtra: The backend is not installed.
    """
    backend = _backend()
    starts: dict[str, Callable[[], DataParallel]] = {"tensorflow": _tensorflow, "jax": _jax}
    if backend not in starts:
        raise ConfigError(
            f"data_parallel() does not support Keras' backend {backend!r}",
            hint="KERAS_BACKEND=tensorflow or jax; for PyTorch see ignitetf.torch",
        )
    return starts[backend]()


def _backend() -> str:
    """Return the backend that Keras uses."""
    if chosen := os.environ.get("KERAS_BACKEND"):
        return chosen
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return "tensorflow"
    try:
        import keras
    except ImportError:
        return "tensorflow"
    found: str = keras.config.backend()
    return found


def _tensorflow() -> DataParallel:
    worker, workers = _place_in_cluster()
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingExtra.of("training with TensorFlow", "tensorflow-cpu", error) from error
    if workers == 1:
        return DataParallel("tensorflow", 0, 1)
    repair_keras()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return DataParallel("tensorflow", worker, workers, strategy)


def _jax() -> DataParallel:
    address, count, number = (os.environ.get(name, "") for name in _PLACE)
    if not any((address, count, number)):
        _check_alone()
        return DataParallel("jax", 0, 1)
    try:
        workers, worker = int(count), int(number)
    except ValueError as error:
        raise ConfigError(f"{', '.join(_PLACE)} must be set together") from error
    try:
        import jax
    except ImportError as error:
        raise MissingExtra.of("training with JAX", "jax", error) from error
    import keras

    if workers > 1:
        with contextlib.suppress(AttributeError):  # versions with this default
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        keras.distribution.initialize(address, workers, worker)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return DataParallel("jax", worker, workers)


def _check_alone() -> None:
    """Raise ConfigError if TF_CONFIG names a group but JAX is configured for one process.

    Each worker would read a shard and train a separate model.
    """
    if _place_in_cluster()[1] > 1:
        raise ConfigError(
            "TF_CONFIG names several workers, and JAX has no coordinator",
            hint=f"set {', '.join(_PLACE)}, as ignitetf launch does",
        )


def _place_in_cluster() -> tuple[int, int]:
    """Return the number of this worker and the number of workers, from TF_CONFIG."""
    from ignitetf.read.arguments import shard_of

    found = shard_of(None)
    return found.index, found.count
