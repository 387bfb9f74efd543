"""Metrics of what this process reads, for Prometheus and OpenTelemetry.

read.usage -> **metrics** -> an HTTP endpoint, a meter

The metrics are those of one process. Each worker process of a loader, and each worker of a job, has
its own. They are collected only on request, so they do not slow down a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.read.usage import Snapshot, snapshot

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from prometheus_client.core import CounterMetricFamily

__all__ = ["MetricsServer", "UsageCollector", "observe", "prometheus_text", "serve", "snapshot"]

_Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True)
class _Metric:
    """A counter: its name, unit (UCUM), description, and the attribute with its value."""

    name: str
    unit: str
    text: str
    labels: tuple[str, ...]
    attribute: str

    def samples(self, now: Snapshot) -> Iterator[_Sample]:
        """Yield label values and the counter's value, for each node, error or data set."""
        for usage in now.data_sets:
            if self.labels == _ERROR:
                for skipped in usage.skipped:
                    yield (usage.name, skipped.error), getattr(skipped, self.attribute)
                continue
            if self.labels == _DATA_SET:
                yield (usage.name,), getattr(usage, self.attribute)
                continue
            for amount in usage.nodes:
                figure = getattr(amount, self.attribute)
                yield (usage.name, amount.node or "", amount.place), figure


_NODE: Final = ("data_set", "node", "place")
_DATA_SET: Final = ("data_set",)
_ERROR: Final = ("data_set", "error")
_METRICS: Final = (
    _Metric("rows", "{row}", "Rows received from a node.", _NODE, "rows"),
    _Metric("bytes", "By", "Bytes of the answers of a node.", _NODE, "nbytes"),
    _Metric("wait_seconds", "s", "Time in which consumers waited for rows.", _DATA_SET, "wait_s"),
    _Metric("retries", "{retry}", "Reads continued after a failure.", _DATA_SET, "retries"),
    _Metric("skipped_rows", "{row}", "Rows that map_rows left out.", _ERROR, "rows"),
)


# Prometheus


def _prometheus(module: str = "prometheus_client") -> Any:
    return MissingExtra.module(module, "metrics need prometheus_client", "prometheus")


class UsageCollector:
    """Collector for a registry of prometheus_client: `REGISTRY.register(UsageCollector())`.

    It has the counters `ignitetf_rows_total` and `ignitetf_bytes_total` (labels `data_set`, `node`,
    `place`), `ignitetf_wait_seconds_total` and `ignitetf_retries_total` (label `data_set`), and
    `ignitetf_skipped_rows_total` (labels `data_set`, `error`).

    Raises:
        MissingExtra: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        self._core = _prometheus("prometheus_client.core")

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the metrics with their present values."""
        now = snapshot()
        for metric in _METRICS:
            name = f"ignitetf_{metric.name}"
            family = self._core.CounterMetricFamily(name, metric.text, labels=metric.labels)
            for labels, figure in metric.samples(now):
                family.add_metric(labels, figure)
            yield family


def prometheus_text() -> str:
    """Return the metrics of this process in the text format of Prometheus.

    Raises:
        MissingExtra: prometheus_client is not installed.
    """
    text: bytes = _prometheus().generate_latest(_registry())
    return text.decode()


def _registry() -> Any:
    """Return a registry that has the metrics of ignitetf only."""
    registry = _prometheus().CollectorRegistry()
    registry.register(UsageCollector())
    return registry


class MetricsServer:
    """A server of metrics that runs in a thread; see `serve`.

    Attributes:
        port: The port that it listens on.
    """

    def __init__(self, server: Any, thread: Any) -> None:
        self._server, self._thread = server, thread
        self.port: int = server.server_port

    def close(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve(port: int = 9464, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of this process at `http://HOST:PORT/metrics`, until the process ends.

    Args:
        port: Port of the server; 0 chooses a free one.
        host: Address to listen on. Each client that reaches it can read the names of data sets and
            the addresses of nodes.

    Raises:
        ConfigError: The server cannot listen there.
        MissingExtra: prometheus_client is not installed.
    """
    client = _prometheus()
    try:
        return MetricsServer(*client.start_http_server(port, host, _registry()))
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port}: {error}",
            hint="choose another port; 0 chooses a free one",
        ) from error


# OpenTelemetry


def observe(provider: MeterProvider | None = None) -> None:
    """Add the metrics to OpenTelemetry, as observable counters of the meter `ignitetf`.

    The names are `ignitetf.rows`, `ignitetf.bytes`, `ignitetf.wait_seconds`, `ignitetf.retries` and
    `ignitetf.skipped_rows`; the attributes are the labels of `UsageCollector`.

    Args:
        provider: Provider to add them to; None for the provider of the process.

    Raises:
        MissingExtra: opentelemetry-api is not installed.
    """
    what = "metrics need opentelemetry-api"
    metrics = MissingExtra.module("opentelemetry.metrics", what, "opentelemetry")
    meter = metrics.get_meter("ignitetf", meter_provider=provider)
    for metric in _METRICS:

        def values(_: CallbackOptions, metric: _Metric = metric) -> Iterable[Observation]:
            for labels, figure in metric.samples(snapshot()):
                yield metrics.Observation(figure, dict(zip(metric.labels, labels, strict=True)))

        meter.create_observable_counter(
            f"ignitetf.{metric.name}", [values], unit=metric.unit, description=metric.text
        )
