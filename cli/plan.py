"""`ignitetf plan`: the cluster size that a training needs, with the rule for each number."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ignitetf.cli.options import Connect, StorageWorkload, WorkloadOption, connected
from ignitetf.cli.output import OutputOption, note, show, terminal_width

if TYPE_CHECKING:
    from ignitetf.bench.workloads import Workload
    from ignitetf.plan.service import ServiceTimes

app = typer.Typer()

_RULE_WIDTH: Final = 72


@app.command()
@connected
def plan(
    connect: Connect,
    accelerators: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Accelerators to feed.")
    ],
    workload: WorkloadOption = StorageWorkload.RESNET50,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=10_000, metavar="N", help="Number of existing nodes.")
    ] = None,
    network_gbit: Annotated[
        float, typer.Option(min=0.01, help="Link of each host, in Gbit/s.")
    ] = 25.0,
    node_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of a node for data, as 64g.")
    ] = "64g",
    per_worker: Annotated[
        int, typer.Option(min=1, metavar="N", help="Accelerators of a host.")
    ] = 8,
    samples: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples of the data set [default: the workload's]."),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(help="Measure a running node for some seconds, in a temporary cache."),
    ] = True,
    output: OutputOption = "table",
) -> None:
    """Estimate nodes, partitions and memory for a training.

    It also gives copies, workers and readers.

    The times of a page are measured on the running node if it has enough memory, and otherwise
    assumed. JSON has the plan, the times and the rules in one object.

    Example: ignitetf plan --accelerators 64 --workload resnet50 --network-gbit 100
    """
    import textwrap
    from dataclasses import asdict

    from ignitetf.bench.workloads import WORKLOADS
    from ignitetf.node.memory import parse_memory
    from ignitetf.plan.service import assumed_times
    from ignitetf.plan.sizing import Demand, make_plan

    chosen = WORKLOADS[workload.value]
    times = _measured(connect, chosen) if measure else None
    if times is None:
        times = assumed_times(chosen.row_bytes)
    memory = parse_memory(node_memory)
    demand = Demand(chosen, accelerators, samples, per_worker, network_gbit, memory, nodes)
    found = make_plan(demand, times)
    if output == "json":
        given = {"workload": workload.value, "accelerators": accelerators}
        show({**given, **asdict(found), "times": asdict(times)}, output)
        return
    rows = found.as_rows()
    if output == "table" and terminal_width(sys.stdout) is None:
        # Outside a terminal, lines are as long as their texts.
        rows = [{**row, "rule": textwrap.fill(row["rule"], _RULE_WIDTH)} for row in rows]
    show(rows, output)
    note(
        f"a page of {times.page_bytes / 1e6:.1f} MB: {1e3 * times.page_s:.2f} ms until it is here,"
        f" {1e3 * times.decode_s:.2f} ms to columns; a round trip {1e3 * times.round_trip_s:.2f} ms"
        f" ({'measured' if times.measured else 'assumed'})"
    )
    for line in found.notes:
        note(line)


def _measured(connect: Connect, workload: Workload) -> ServiceTimes | None:
    """Return the measured times of the running node, or None and the reason."""
    from ignitetf.errors import ConnectError
    from ignitetf.plan.service import measure_times

    try:
        with connect() as client:
            note("measuring the running node")
            times = measure_times(client, workload)
    except ConnectError as error:
        note(f"not measured: {error.message}")
        return None
    if times is None:
        note("not measured: the node has too little free memory")
    return times
