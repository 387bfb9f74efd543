"""Trainings as MLPerf Storage describes them: samples, batches, and the time of a step.

published figures -> **workloads** -> bench storage, plan

Sizes and times are those of the configurations for DLIO, the benchmark's generator: `resnet50`,
`unet3d` and `cosmoflow` on H100, and the trainings of MLPerf Storage v3.0 on B200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ignitetf.bench.rows import Kind

__all__ = ["MOST_ROW_BYTES", "WORKLOADS", "Workload"]

# A page has at least one row, and a node needs several times the page's bytes of Java heap.
MOST_ROW_BYTES: Final = 16_000_000


@dataclass(frozen=True)
class Workload:
    """A training, as its storage sees it.

    Attributes:
        name: Its name.
        batch: Samples of a step of one accelerator.
        sample_bytes: Bytes of a sample.
        step_s: Seconds for which an accelerator computes a step.
        least_utilisation: Share of its time for which an accelerator must compute.
        samples: Samples of the data set.
        note: Differences from the samples of the benchmark; empty if there are none.
        kind: The columns of a sample; see `Profile`.
        columns: Number of columns that are read, of all; 0 if all are read.
    """

    name: str
    batch: int
    sample_bytes: int
    step_s: float
    least_utilisation: float
    samples: int
    note: str = ""
    kind: Kind = "dense"
    columns: int = 0

    @property
    def sample_rows(self) -> int:
        """Number of equally large rows that store a sample: 1, or more if it is large."""
        return -(-self.sample_bytes // MOST_ROW_BYTES)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return -(-self.sample_bytes // self.sample_rows)

    @property
    def batch_rows(self) -> int:
        """Rows of a step of one accelerator."""
        return self.batch * self.sample_rows

    @property
    def batch_bytes(self) -> int:
        """Bytes of a step of one accelerator."""
        return self.batch_rows * self.row_bytes

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second that keep one accelerator busy without a pause."""
        return self.batch * self.sample_bytes / self.step_s


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("resnet50", 400, 114_660, 0.224, 0.90, 1024 * 1251),
        Workload("unet3d", 7, 146_600_628, 0.323, 0.90, 168),
        Workload("cosmoflow", 1, 2_828_486, 0.0035, 0.70, 524_288),
        Workload(
            "retinanet-b200",
            24,
            322_957,
            0.04755,
            0.85,
            1_170_301,
            "a sample is its JPEG bytes, which are not decoded",
        ),
        Workload(
            "unet3d-b200",
            7,
            146_600_628,
            0.162,
            0.90,
            7_200,
            "all samples have the mean size; those of the benchmark vary",
        ),
        Workload(
            "flux-b200",
            48,
            2_164_832,
            1.35,
            0.90,
            4_296 * 288,
            kind="floats",
        ),
        Workload(
            "dlrm-b200",
            16_384,
            761,
            0.000375,
            0.70,
            1_024 * 4_718_592,
            "a node sends all 200 columns of a row; 45 of them are parsed",
            "wide",
            45,
        ),
    )
}
