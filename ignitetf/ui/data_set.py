"""The open data sets of the pages, each opened once while it does not change.

name -> **data_set** -> views
"""

from __future__ import annotations

from ignitetf.explore.browse import View, open_view, version_of
from ignitetf.explore.histograms import Sample, sample_of
from ignitetf.ui.cluster import Cluster

__all__ = ["open_data_set", "open_sample"]


def open_data_set(cluster: Cluster, name: str) -> View:
    """Return a data set, opened before if it has not changed since; raises as `open_view`."""
    with cluster.client() as client:
        version = version_of(client, name)
    found: View = cluster.opened.get(version, lambda: open_view(cluster.reading, version[0]))
    return found


def open_sample(cluster: Cluster, data: View) -> Sample:
    """Return the histograms of a version of a data set; made once."""
    found: Sample = cluster.samples.get(data.version, lambda: sample_of(data))
    return found
