"""A signal ends a command once, wherever it comes, and does not disturb what it set off."""

import signal
import subprocess
import sys
import textwrap

import pytest

if sys.platform == "win32":
    pytest.skip("POSIX signals", allow_module_level=True)

BEGIN = """\
import os, signal, sys, time, weakref
from ignitetf.cli.interrupts import end_at_request

end_at_request()
NUMBER = signal.Signals({number})
"""
END = """\
try:
    work()
    time.sleep(10)
    print("ran on")
except KeyboardInterrupt as error:
    print("ended by", *error.args)
"""
SEND = "import os, signal; os.kill(os.getpid(), {number})"
# Code where a signal is lost, after which the command runs on.
LOST = {
    "a package is missing": """\
        def work():
            import forgiving
        """,
    "a package within another": """\
        def work():
            import outer
        """,
    "a module is found in the end": """\
        def work():
            try:
                import signalling
            except BaseException:
                pass
            sys.modules["signalling"] = sys
        """,
    "the end of an object": """\
        class Object:
            def __del__(self):
                os.kill(os.getpid(), NUMBER)

        def work():
            Object()
        """,
    "the callback of a reference": """\
        class Object: ...

        def work():
            it = Object()
            reference = weakref.ref(it, lambda _: os.kill(os.getpid(), NUMBER))
            del it
        """,
}
# Code that ends because of it, and cleans up.
NOT_LOST = {
    "work": "os.kill(os.getpid(), NUMBER)",
    "an import": "import signalling",
    "an import within another": "import passing",
}


def run(tmp_path, number, work):
    send = SEND.format(number=number.value)
    forgiving = "try:\n    import signalling\nexcept:\n    pass\n"
    for name, text in {
        "signalling": send,
        "forgiving": forgiving,
        "outer": "import forgiving, time\ntime.sleep(10)\n",
        "passing": "import signalling",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    program = BEGIN.format(number=number.value) + textwrap.dedent(work) + END
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", LOST)
def test_a_lost_signal_ends_the_command_all_the_same(tmp_path, name, number):
    found = run(tmp_path, number, LOST[name])
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["ended", "by", str(number.value)]


@pytest.mark.parametrize("name", NOT_LOST)
def test_the_clean_up_is_left_alone(tmp_path, name):
    work = f"""\
    def work():
        try:
            {NOT_LOST[name]}
        finally:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                pass
            print("cleaned")
    """
    found = run(tmp_path, signal.SIGINT, work)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["cleaned", "ended", "by", str(signal.SIGINT.value)]


def test_a_program_that_ends_at_once_is_not_killed(tmp_path):
    found = run(tmp_path, signal.SIGINT, "def work():\n    import signalling\n")
    assert (found.returncode, found.stderr) == (0, "")


def test_other_errors_are_still_reported(tmp_path):
    found = run(
        tmp_path,
        signal.SIGINT,
        """\
        class Object:
            def __del__(self):
                raise ValueError("mine")

        def work():
            Object()
            raise KeyboardInterrupt
        """,
    )
    assert "ValueError: mine" in found.stderr


def test_what_the_caller_ignores_stays_ignored(tmp_path):
    program = BEGIN.format(number=15) + "os.kill(os.getpid(), signal.SIGTERM); print('ran on')"
    ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{program}"
    found = subprocess.run(
        [sys.executable, "-c", ignoring], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout == "ran on\n"


# Where a signal may come while a command runs, in the words of a function `send`.
PLACES = {
    "the command": "def act(): send()",
    "its arguments": "LazyGroup.parse_args = send",
    "the text of a dataclass": "def act(): exec('send()')",
    "an error over it": """\
def act():
    try:
        send()
    except KeyboardInterrupt as error:
        raise RuntimeError('a class could not be made') from error
""",
}


@pytest.mark.parametrize("place", PLACES)
def test_the_exit_code_is_that_of_the_signal_wherever_it_comes(tmp_path, place):
    program = f"""\
import os, signal, typer
from ignitetf.cli.group import LazyGroup
from ignitetf.cli.interrupts import end_at_request

end_at_request()
registry = {{"act": ("__main__", "")}}
root = typer.Typer(cls=type("G", (LazyGroup,), {{"registry": registry}}))
app = typer.Typer()

def send(*_): os.kill(os.getpid(), signal.SIGTERM)

def act(): ...

root.callback()(lambda: None)
{PLACES[place]}
app.command()(act)
root(["act"])
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "interrupted\n")
