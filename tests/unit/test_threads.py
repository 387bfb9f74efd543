"""Threads and locks when the program ends."""

import subprocess
import sys

ENDING = """
import threading
from ignitetf.threads import held, start

lock = threading.Lock()
lock.acquire()

class Last:
    def __del__(self, start=start, held=held, thread=threading.Thread, lock=lock, print=print):
        with held(lock):
            print(start(thread(target=print)))

last = Last()
last.itself = last
assert start(threading.Thread(target=print, args=("ran",)))
"""


def test_at_the_very_end_no_thread_starts_and_no_lock_is_waited_for():
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\nFalse\n", "")
