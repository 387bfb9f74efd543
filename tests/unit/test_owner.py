"""Whether the process that holds a lease has ended."""

import os
import subprocess
import sys
import time

import pytest

from ignitetf.owner import has_ended, machine, started

# A process that looks after the clock was set by an hour: the time of the boot seems another.
AFTER_A_JUMP = """
import sys, psutil
from ignitetf.owner import has_ended, machine

linux = sys.modules.get("psutil._pslinux")
if linux is not None:
    before = linux.boot_time()
    linux.BOOT_TIME, linux.boot_time = before + 3600, lambda: before + 3600
print(has_ended(machine(), int(sys.argv[1]), float(sys.argv[2])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the start is a time of day")
def test_setting_the_clock_ends_no_process():
    command = [sys.executable, "-c", AFTER_A_JUMP, str(os.getpid()), repr(started())]
    assert subprocess.check_output(command, text=True) == "False\n"


def test_a_process_that_ended_is_known_and_its_number_may_come_again():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = started(child.pid)
    assert since is not None
    assert not has_ended(machine(), child.pid, since)
    assert has_ended(machine(), child.pid, since - 60)
    assert not has_ended("elsewhere", child.pid, since)
    child.communicate(b"\n")
    assert started(child.pid) is None
    assert has_ended(machine(), child.pid, since)


def test_a_killed_process_has_ended_before_its_parent_collects_it():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = started(child.pid)
    child.kill()
    end = time.monotonic() + 10
    while not has_ended(machine(), child.pid, since) and time.monotonic() < end:
        time.sleep(0.01)
    assert has_ended(machine(), child.pid, since)
    child.wait()
