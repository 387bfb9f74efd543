"""Metrics say what was read, whoever asks: Prometheus, OpenTelemetry, the log and the snapshot."""

import logging
import urllib.request

import numpy as np
import pytest

from ignitetf import load_dataset, open_rows
from ignitetf.errors import ConfigError
from ignitetf.metrics import observe, prometheus_text, serve, snapshot

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

pytestmark = pytest.mark.node
ROWS = 1_000


@pytest.fixture
def read(client, cache_name):
    """A data set of which one epoch was read by this process."""
    data = {"IMAGE": np.zeros((ROWS, 64), np.uint8), "LABEL": np.arange(ROWS)}
    load_dataset(data, cache_name, client=client, partitions=4)
    rows = open_rows(cache_name, client=client)
    assert sum(len(batch["key"]) for batch in rows.batches(100)) == ROWS
    return cache_name


def samples(text, data_set):
    """Return the value of each metric of a data set, added up over its nodes."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("data_set") == data_set:
                found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_the_text_has_the_rows_and_bytes_that_were_read(read):
    usage = next(each for each in snapshot().data_sets if each.name == read)
    found = samples(prometheus_text(), read)
    assert found["ignitetf_rows_total"] == ROWS
    assert found["ignitetf_bytes_total"] == sum(n.nbytes for n in usage.nodes) > ROWS * 64
    assert found["ignitetf_wait_seconds_total"] == usage.wait_s > 0
    assert found["ignitetf_retries_total"] == 0


def test_a_second_epoch_counts_again(client, read):
    rows = open_rows(read, client=client).next_epoch()
    for _ in rows.batches(100):
        pass
    assert samples(prometheus_text(), read)["ignitetf_rows_total"] == 2 * ROWS


def test_it_is_served_until_it_is_closed(read):
    with serve(0) as server:
        address = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:  # nosec B310
            assert samples(answer.read().decode(), read)["ignitetf_rows_total"] == ROWS
        with pytest.raises(ConfigError, match="cannot be served"):
            serve(server.port)
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=10)  # nosec B310


def test_opentelemetry_has_the_same_figures(read):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    observe(MeterProvider([reader]))
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    # A metric has no sample of a data set that it does not count anything of.
    points = {
        metric.name: [p.value for p in metric.data.data_points if p.attributes["data_set"] == read]
        for metric in scope.metrics
    }
    found = {
        f"{name.replace('.', '_')}_total": sum(values) for name, values in points.items() if values
    }
    assert found["ignitetf_rows_total"] == ROWS
    assert found == samples(prometheus_text(), read)


def test_the_log_of_an_epoch_says_how_long_it_waited(client, read, caplog):
    with caplog.at_level(logging.INFO, "ignitetf.read.usage"):
        for _ in open_rows(read, client=client, shard=(0, 1)).batches(128):
            pass
    (line,) = [r.getMessage() for r in caplog.records if r.name == "ignitetf.read.usage"]
    assert line.startswith(f"{read}: epoch 0, shard 0 of 1: {ROWS} rows in ")
    share = int(line.rsplit("wait ", 1)[1].removesuffix(" %"))
    assert 0 <= share <= 100


def test_a_process_that_has_read_nothing_has_metrics_without_samples():
    import subprocess
    import sys

    code = "from ignitetf.metrics import prometheus_text; print(prometheus_text())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    families = list(text_string_to_metric_families(out.stdout))
    assert [f.name for f in families] == [
        f"ignitetf_{name}" for name in ("rows", "bytes", "wait_seconds", "retries", "skipped_rows")
    ]
    assert not any(f.samples for f in families)
