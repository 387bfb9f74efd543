"""Launched jobs: scripts without TensorFlow, the command, and what may be left of it."""

import os
import signal
import subprocess
import sys
import time

import psutil

# A script listens on its port, as TensorFlow does, and says so.
PRELUDE = """
import json, os, signal, socket, subprocess, sys, time
number = int(os.environ["IGNITETF_WORKER"])
def listen():
    config = json.loads(os.environ["TF_CONFIG"])
    task = config["task"]
    host, port = config["cluster"][task["type"]][task["index"]].split(":")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, int(port)))
    server.listen()
    print("port", port)
    return server
"""


class Launches:
    """Starts `ignitetf launch` in a folder of its own, with a mark that all its processes carry."""

    def __init__(self, address, folder):
        self.folder = folder
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.environment = {
            **os.environ,
            "IGNITETF_ADDRESS": address,
            "LAUNCH_TEST": self.mark,
            "IGNITETF_HOME": os.environ["IGNITETF_HOME"],
        }

    def script(self, body, name="train.py", prelude=PRELUDE):
        path = self.folder / name
        path.write_text(prelude + body)
        return path.name

    def start(self, *arguments, **more):
        return subprocess.Popen(
            [sys.executable, "-m", "ignitetf", "launch", *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        )

    def run(self, *arguments, timeout=60):
        """Run to the end, and return (exit code, stdout, stderr); nothing may be left."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            end(process)
        assert self.left() == []
        return process.returncode, out, err

    def left(self):
        """Processes of this test that still run, without the one that asks."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("LAUNCH_TEST") == self.mark:
                    found.append(" ".join(process.cmdline()) or process.name())
            except psutil.Error:
                continue
        return found

    def wait_gone(self, seconds=15):
        until = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        assert found == []

    def workers(self):
        """Process ids of the workers' scripts by number, as they are now."""
        found = {}
        for process in psutil.process_iter():
            try:
                facts = process.environ()
                ours = facts.get("LAUNCH_TEST") == self.mark and "IGNITETF_WORKER" in facts
                if ours and os.getsid(process.pid) == process.pid:
                    found[int(facts["IGNITETF_WORKER"])] = process.pid
            except (psutil.Error, OSError):
                continue
        return found


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for stream in (process.stdout, process.stderr):
        stream.close()


def lines_until(process, wanted, stream="stdout"):
    """Read lines until all wanted texts have come; return the lines."""
    found, missing = [], set(wanted)
    for line in getattr(process, stream):
        found.append(line.rstrip("\n"))
        missing = {text for text in missing if text not in line}
        if not missing:
            return found
    raise AssertionError(f"{missing} did not come: {found}")
