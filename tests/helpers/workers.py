"""Several workers of one program, told their places by TF_CONFIG and what JAX and Keras read."""

import contextlib
import json
import os
import subprocess
import sys

from helpers.ports import free_port


def steps_of(batches, most=None):
    """The parts of each step, one of each worker; all workers have equally many steps."""
    steps = 0
    while most is None or steps < most:
        parts = [next(one, None) for one in batches]
        if None in parts:
            assert parts == [None] * len(parts), "the workers have unequal steps"
            return
        yield parts
        steps += 1


def environments(count):
    """The environment of each worker, as a launcher sets it."""
    port = free_port(count + 1)
    workers = [f"127.0.0.1:{port + i}" for i in range(count)]
    for index in range(count):
        task = {"type": "worker", "index": index}
        yield {
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port + count}",
            "JAX_NUM_PROCESSES": str(count),
            "JAX_PROCESS_ID": str(index),
            "TF_CPP_MIN_LOG_LEVEL": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }


def run_workers(command, count=2, timeout=240, **environment):
    """Run a program as `count` workers; returns (stdout, stderr) of each after all ended well."""
    places = environments(count) if count > 1 else [{}]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_started(command, {**environment, **p})) for p in places]
        found = [process.communicate(timeout=timeout) for process in started]
    for process, (_, errors) in zip(started, found, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return found


@contextlib.contextmanager
def _started(command, environment):
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
