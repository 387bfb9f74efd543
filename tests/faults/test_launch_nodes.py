"""A job of two workers while a node dies: it does not notice."""

import json
import os
import random
import time

import psutil
import pytest
from helpers.launch_epochs import EPOCHS, keys_of_epochs
from helpers.launches import Launches, end, lines_until
from helpers.ports import lasting_port

from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow]


def test_a_job_does_not_notice_a_killed_node(node_home, tmp_path):
    from ignitetf.node import Node

    seed = int(os.environ.get("IGNITETF_FAULT_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    chance = random.Random(seed)
    with Node.start("launching", port=lasting_port(3), nodes=3, memory="512m") as node:
        with connect(node.addresses) as client:
            rows = [{"A": number} for number in range(330)]
            load_dataset(rows, "DATA_OF_THREE", client=client, partitions=8, backups=1)
        launches = Launches(",".join(node.addresses), tmp_path)
        script = launches.script(EPOCHS.replace("DATA", "DATA_OF_THREE"))
        process = launches.start("-n", "2", "-o", "json", script)
        try:
            lines_until(process, ["[worker 0] step", "[worker 1] step"], "stderr")
            time.sleep(chance.uniform(0, 1))
            victim = psutil.Process(chance.choice(node.pids))
            victim.kill()
            psutil.wait_procs([victim], timeout=30)
            out, err = process.communicate(timeout=120)
        finally:
            end(process)
        launches.wait_gone()
    record = json.loads(out)
    assert process.returncode == 0, err
    assert (record["state"], record["attempt"]) == ("ended", 1)
    assert keys_of_epochs(tmp_path) == {"0": list(range(330)), "1": list(range(330))}
