"""`ignitetf launch`: an unchanged script in several processes, of which nothing is left.

The scripts do without TensorFlow where the law does not need it.
"""

import json
import os
import random
import signal
import socket
import time

import pytest
from helpers.launch_epochs import EPOCHS, keys_of_epochs
from helpers.launches import Launches, end, lines_until

pytestmark = pytest.mark.node


@pytest.fixture
def launches(address, tmp_path):
    found = Launches(address, tmp_path)
    yield found
    found.wait_gone(0)


def is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


FACTS = """
from pathlib import Path
names = ["TF_CONFIG", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID",
         "IGNITETF_WORKER", "IGNITETF_JOB", "IGNITETF_JOB_DIR", "IGNITE_DATASET_CACHE_NAME"]
here = os.path.dirname(os.path.realpath(__file__))
print("FACTS " + json.dumps({
    **{name: os.environ.get(name) for name in names}, "argv": sys.argv,
    "main": sys.modules["__main__"].number == number == globals()["number"],
    "path": sys.path[0] == here}))
# When the chief is done, those that serve are ended.
open(f"seen-{number}", "w").close()
while '"chief"' in os.environ.get("TF_CONFIG", "") and len(list(Path().glob("seen-*"))) < 4:
    time.sleep(0.05)
"""


def facts(out):
    found = {}
    for line in out.splitlines():
        prefix, _, text = line.partition(" FACTS ")
        found[prefix] = json.loads(text)
    return found


def test_each_worker_learns_its_place_and_sees_its_script_alone(launches, typed_rows):
    script = launches.script(FACTS)
    arguments = ("--data", typed_rows, script, "--epochs", "3", "-n", "x")
    code, out, _ = launches.run("-n", "2", *arguments)
    found = facts(out)
    assert code == 0
    assert sorted(found) == ["[worker 0]", "[worker 1]"]
    for index, each in enumerate(found[name] for name in sorted(found)):
        config = json.loads(each["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": index}
        assert len(set(config["cluster"]["worker"])) == 2
        assert each["JAX_COORDINATOR_ADDRESS"] not in config["cluster"]["worker"]
        assert (each["JAX_NUM_PROCESSES"], each["JAX_PROCESS_ID"]) == ("2", str(index))
        assert each["IGNITETF_JOB_DIR"] == f"igfs:///jobs/{each['IGNITETF_JOB']}"
        assert each["IGNITE_DATASET_CACHE_NAME"] == typed_rows
        assert each["argv"] == [script, "--epochs", "3", "-n", "x"]
        assert each["main"] and each["path"]
    code, out, _ = launches.run(script)
    assert facts(out)["[worker 0]"]["TF_CONFIG"] is None
    for seen in launches.folder.glob("seen-*"):
        seen.unlink()
    code, out, _ = launches.run("-n", "2", "--ps", "1", script)
    tasks = {name: json.loads(each["TF_CONFIG"])["task"] for name, each in facts(out).items()}
    assert tasks == {
        "[chief]": {"type": "chief", "index": 0},
        "[worker 0]": {"type": "worker", "index": 0},
        "[worker 1]": {"type": "worker", "index": 1},
        "[ps 0]": {"type": "ps", "index": 0},
    }


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        ("sys.exit(7)", 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was ended by SIGSEGV"),
        ("sys.exit('no luck')", 1, "no luck"),
        ("(", 1, "SyntaxError"),
    ],
)
def test_the_first_failure_ends_the_group_with_its_code(launches, body, code, reason):
    rest = "if number != 1: time.sleep(60)\n" if body != "(" else ""
    script = launches.script(rest + body)
    begun = time.monotonic()
    done, _, err = launches.run("-n", "3", script)
    last = err.splitlines()[-1]
    assert done == code
    assert "worker 1" in last or body == "("
    assert reason in last
    assert time.monotonic() - begun < 15


def test_a_traceback_looks_as_by_hand(launches):
    script = launches.script("def f():\n    raise ValueError('so')\nf()\n")
    _, _, err = launches.run(script)
    told = [line.removeprefix("[worker 0] ") for line in err.splitlines() if "[worker" in line]
    assert told[0] == "Traceback (most recent call last):"
    files = [line for line in told if line.startswith("  File ")]
    assert len(files) == 2 and all(script in line for line in files)
    assert told[-1] == "ValueError: so"


def test_workers_wait_at_the_end_and_none_is_torn(launches):
    body = """
import atexit
print("x" * 5000)
sys.stderr.write("no end of line")
if number == 0: open("done", "w").close()
else:
    time.sleep(1.5)
    print("chief is here", os.path.exists("ended"))
if number == 0: atexit.register(lambda: open("ended", "w").close())
sys.exit(0)
"""
    code, out, err = launches.run("-n", "2", launches.script(body))
    assert code == 0
    assert "[worker 1] chief is here False" in out.splitlines()
    assert out.splitlines().count("[worker 0] " + "x" * 5000) == 1
    assert "[worker 0] no end of line" in err.splitlines()


STUBBORN = """
server = listen()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True); time.sleep(99)"])
time.sleep(99)
"""


EXITS = """
import atexit
from pathlib import Path
server = listen()
Path(f"pid-{number}").write_text(str(os.getpid()))

def is_alive(path):
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    return True

def leave():
    time.sleep(0.8 * number)
    print("EXIT with", sum(map(is_alive, Path().glob("pid-*"))), flush=True)

while len(list(Path().glob("pid-*"))) < 3:
    time.sleep(0.05)
if (child := os.fork()) == 0:
    sys.exit()  # runs exit functions as well, and waits for nobody
os.waitpid(child, 0)
atexit.register(leave)
"""


def test_no_worker_is_gone_while_another_runs_its_exit_functions(launches):
    """TensorFlow would report it as crashed."""
    code, out, _ = launches.run("-n", "3", launches.script(EXITS))
    assert code == 0
    assert sorted(line for line in out.splitlines() if "EXIT" in line) == [
        f"[worker {number}] EXIT with 3" for number in range(3)
    ]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_to_the_launcher_leaves_nothing(launches, name):
    number = getattr(signal, name)
    process = launches.start("-n", "2", "--grace", "0.5", launches.script(STUBBORN))
    try:
        wanted = [f"[worker {i}] {what}" for i in (0, 1) for what in ("child", "port")]
        told = lines_until(process, wanted)
        ports = [int(line.split()[-1]) for line in told if "port" in line]
        process.send_signal(number)
        code = process.wait(15)
    finally:
        end(process)
    launches.wait_gone()
    assert code == (-number if name == "SIGKILL" else 128 + number)
    # A process that ends gives up its memory, by which it is found, before its sockets.
    until = time.monotonic() + 5
    while not all(map(is_free, ports)) and time.monotonic() < until:
        time.sleep(0.05)
    assert all(map(is_free, ports))


def test_a_launcher_killed_at_any_moment_leaves_nothing(launches):
    seed = int(os.environ.get("IGNITETF_FAULT_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    moments = random.Random(seed)
    script = launches.script(STUBBORN)
    for _ in range(5):
        process = launches.start("-n", "2", script)
        time.sleep(moments.uniform(0.3, 1.5))
        end(process)
        launches.wait_gone()


def test_a_worker_that_never_begins_ends_the_job(launches):
    script = launches.script("server = listen() if number == 0 else None\ntime.sleep(60)")
    begun = time.monotonic()
    code, _, err = launches.run("-n", "2", "--start-timeout", "2", "--grace", "1", script)
    assert code == 1
    assert "worker 1 has not started within 2 s" in err.splitlines()[-1]
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no.py"], "no script 'no.py'"),
        (["."], "is not a file"),
        (["--data", "NOT_THERE", "train.py"], "NOT_THERE"),
        (["-n", "900", "--data", "DATA", "train.py"], "rows for 900 workers"),
        (["-n", "2", "--elastic", "3:4", "train.py"], "outside --elastic 3:4"),
        (["--elastic", "3", "train.py"], "not a range of workers"),
        (["--address", "127.0.0.1:9", "train.py"], "connection refused"),
    ],
)
def test_what_cannot_work_is_told_in_a_line_before_anything_starts(
    launches, typed_rows, arguments, reason
):
    launches.script("print('began')")
    code, out, err = launches.run(*(typed_rows if a == "DATA" else a for a in arguments))
    first, *hints = err.splitlines()
    assert (code, out) == (1, "")
    assert first.startswith("error: ") and reason in first
    assert all(line.startswith("hint: ") for line in hints)


@pytest.mark.parametrize("elastic", [False, True], ids=["as many", "those that are left"])
def test_killed_workers_cost_no_row_and_double_none(launches, typed_rows, elastic):
    seed = int(os.environ.get("IGNITETF_FAULT_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    chance = random.Random(seed)
    script = launches.script(EPOCHS.replace("DATA", typed_rows))
    how = ["-n", "3", "--elastic", "1:3"] if elastic else ["-n", "2", "--restarts", "2"]
    process = launches.start(*how, "-o", "json", script)
    begun = time.monotonic()
    killed = []
    try:
        for _ in range(2):
            before = len(killed)
            while len(killed) == before and time.monotonic() - begun < 60:
                lines_until(process, ["step"], "stderr")
                time.sleep(chance.uniform(0, 0.5))
                workers = launches.workers()
                number = chance.choice(sorted(workers)) if workers else 0
                if workers.get(number) not in (None, *killed):
                    os.kill(workers[number], signal.SIGKILL)
                    killed.append(workers[number])
            lines_until(process, ["started again"], "stderr")
        err = process.stderr.read()
        record = json.loads(process.stdout.read())
        assert process.wait(60) == 0, err
    finally:
        end(process)
    launches.wait_gone()
    assert (record["state"], record["attempt"]) == ("ended", 3)
    assert record["running"] == (1 if elastic else 2)
    assert keys_of_epochs(launches.folder) == {"0": list(range(330)), "1": list(range(330))}


def test_a_job_is_recorded_with_its_output_until_it_ends(launches, client, typed_rows):
    from ignitetf.fs.store import open_store
    from ignitetf.jobs.logs import LogReader
    from ignitetf.jobs.store import JobStore

    body = "from ignitetf import open_rows\nserver = listen()\n"
    body += "print(len(list(open_rows(os.environ['IGNITE_DATASET_CACHE_NAME']).batches(64))))\n"
    body += "time.sleep(60 * number)\n"
    script = launches.script(body)
    process = launches.start("-n", "2", "--data", typed_rows, "--grace", "1", "-o", "json", script)
    try:
        begun = lines_until(process, ["[worker 0] 3", "[worker 1] 3"], "stderr")
        job = begun[0].split()[1].rstrip(":")
        store = JobStore(client)
        until = time.monotonic() + 15
        while time.monotonic() < until:
            states = [status.state for status in store.workers(job)]
            if store.get(job).state == "running" and states == ["waiting", "running"]:
                break
            time.sleep(0.1)
        assert states == ["waiting", "running"]
        store.request_stop(job, "somebody")
        record = json.loads(process.communicate(timeout=30)[0])
    finally:
        end(process)
    launches.wait_gone()
    assert record["state"] == "stopped" and "somebody" in record["cause"]
    assert process.returncode == record["exit_code"] == 128 + signal.SIGTERM
    assert json.loads(json.dumps(store.get(job).to_json())) | {"seen": ""} == record
    statuses = store.workers(job)
    assert sum(status.rows for status in statuses) >= 330
    assert sum(epoch["rows"] for status in statuses for epoch in status.epochs) == 330
    kept = list(LogReader(open_store(client.settings), job).lines(rest=True))
    assert [line for line in kept if line[2] == "3"] == [(1, f"worker {i}", "3") for i in (0, 1)]


TRAINING = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    return strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)
again = os.environ["IGNITETF_ATTEMPT"] == "2"
for number in range(20 if again else 1000):
    total = float(step())
    if number % 10 == 0: print("sum", total)
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_tensorflow_is_started_again_at_once_on_ports_that_were_held(launches):
    pytest.importorskip("tensorflow")
    launches.environment |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    script = launches.script(TRAINING)
    process = launches.start("-n", "2", "--restarts", "1", "--grace", "1", "-o", "json", script)
    try:
        lines_until(process, ["[worker 0] sum 2.0", "[worker 1] sum 2.0"], "stderr")
        os.kill(launches.workers()[0], signal.SIGKILL)
        begun = time.monotonic()
        lines_until(process, ["worker 0 was ended by SIGKILL; started again"], "stderr")
        # The other one alone would notice after a quarter of a minute, and outlive SIGTERM.
        assert time.monotonic() - begun < 8
        out, err = process.communicate(timeout=120)
    finally:
        end(process)
    launches.wait_gone()
    assert process.returncode == 0, err[-3000:]
    assert json.loads(out)["attempt"] == 2
    assert "[worker 1] sum 2.0" in err


def test_a_detached_job_goes_on_and_a_dry_run_starts_nothing(launches, client):
    from ignitetf.jobs.store import JobStore

    script = launches.script("time.sleep(1.5)\nopen('ended', 'w').close()\n")
    code, out, _ = launches.run("-n", "2", "--dry-run", "-o", "json", script)
    assert code == 0
    assert [each["worker"] for each in json.loads(out)] == ["worker 0", "worker 1"]
    assert all(each["command"][-1] == script for each in json.loads(out))
    assert not (launches.folder / "ended").exists()

    process = launches.start("--detach", "-o", "json", script)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    job = json.loads(out)["id"]
    assert not (launches.folder / "ended").exists()
    launches.wait_gone()
    assert (launches.folder / "ended").exists()
    record = JobStore(client).get(job)
    assert (record.state, record.exit_code) == ("ended", 0)
