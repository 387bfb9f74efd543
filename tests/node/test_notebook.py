"""What a notebook shows: tables without side effects, thumbnails, short tracebacks, progress."""

import base64
import html.parser
import io
import queue
import re
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import ignitetf.dbapi
from ignitetf import load_dataset, open_rows
from ignitetf.errors import IgniteTFError, SqlError
from ignitetf.jobs.record import Job
from ignitetf.jobs.store import JobStore
from ignitetf.load.sources import open_source
from ignitetf.read.usage import snapshot


class Found(html.parser.HTMLParser):
    """The texts of cells, the images, and whether all tags are closed in their order."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.images, self.open = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs)["src"])
            return
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@pytest.fixture(scope="module")
def photos(client, tmp_path_factory):
    """A data set with encoded images, classes and text that looks like HTML."""
    folder = tmp_path_factory.mktemp("photos")
    for number, kind in enumerate(("cat", "dog", "cat")):
        (folder / kind).mkdir(exist_ok=True)
        pixels = np.full((30, 50, 3), 80 * number, np.uint8)
        Image.fromarray(pixels).save(folder / kind / f"<b>{number}.png")
    load_dataset(open_source("images", folder), "NB_PHOTOS", client=client, if_exists="replace")
    yield "NB_PHOTOS"
    ignitetf.drop_dataset("NB_PHOTOS", client=client)


def test_a_result_shows_its_next_rows_and_stays_unread(client):
    query = "SELECT X, 'a<b' T, CAST(NULL AS INT) N FROM SYSTEM_RANGE(1, 2000)"
    with client.sql(query) as result:
        first = Found(result._repr_html_()).cells
        assert first[:9] == ["X", "T", "N", "1", "a<b", "NULL", "2", "a<b", "NULL"]
        assert next(iter(result)) == (1, "a<b", None)
        assert Found(result._repr_html_()).cells[3] == "2"
        assert len(list(result)) == 1999
        assert Found(result._repr_html_()).cells == ["X", "T", "N"]
        assert "X, T, N" in repr(result)


def test_a_cursor_shows_what_fetch_returns_next(client):
    with ignitetf.dbapi.connect(client.settings.addresses[0]) as connection:
        cursor = connection.execute("SELECT X FROM SYSTEM_RANGE(1, 3)")
        cursor.fetchone()
        assert Found(cursor._repr_html_()).cells == ["X", "2", "3"]
        assert cursor.fetchall() == [(2,), (3,)]
        assert "X" in repr(cursor)


def test_rows_show_fields_classes_and_images_without_being_read(client, photos):
    rows = open_rows(photos, client=client)
    before = len(snapshot().iterations)
    text = rows._repr_html_()
    assert len(snapshot().iterations) == before
    found = Found(text)
    assert found.cells[:3] == ["field", "type", "shape"]
    assert "classes: 0 cat, 1 dog" in text
    assert "3 rows" in text
    assert "0 cat" in found.cells
    assert "cat/<b>0.png" in found.cells
    assert len(found.images) == 3
    for source in found.images:
        data = base64.b64decode(source.removeprefix("data:image/png;base64,"))
        assert max(Image.open(io.BytesIO(data)).size) <= 128
    assert [batch["key"].tolist() for batch in rows.batches(8)] == [[0, 1, 2]]


def test_rows_with_nulls_are_shown_though_reading_refuses_them(client, cache_name):
    rows = [{"K": 1, "V": None}, {"K": 2, "V": 2.5}]
    load_dataset(rows, cache_name, client=client, key="K")
    cells = Found(open_rows(cache_name, client=client)._repr_html_()).cells
    assert {"NULL", "2.5"} <= set(cells)


def test_a_dataset_and_its_batches_show_their_elements(client, photos):
    from ignitetf import IgniteDataset

    dataset = IgniteDataset(photos, addresses=client.settings.addresses)
    assert len(Found(dataset._repr_html_()).images) == 3
    cells = Found(dataset.batch(2)._repr_html_()).cells
    assert cells[:6] == ["element", "dtype", "shape", "['key']", "int64", "(None,)"]


def test_a_report_and_jobs_are_tables(client, cache_name):
    report = load_dataset({"V": np.arange(3)}, cache_name, client=client)
    assert ["cache", cache_name, "rows", "3"] == Found(report._repr_html_()).cells[:4]
    store = JobStore(client)
    store.create(Job("nb-job-1", "train.py", state="ended", cause="<none>"))
    try:
        assert "nb-job-1" in Found(store._repr_html_()).cells
        assert "<none>" in Found(store.get("nb-job-1")._repr_html_()).cells
    finally:
        store.remove("nb-job-1")


def test_pictures_of_every_kind_and_nothing_else():
    from ignitetf.notebook import picture

    deep = np.linspace(0, 4000, 64, dtype=np.uint16).reshape(8, 8)
    out = io.BytesIO()
    Image.fromarray(deep).save(out, "PNG")
    for value in (deep, out.getvalue()):
        data = picture(value).partition("base64,")[2].partition('"')[0]
        shades = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        assert len(np.unique(shades)) > 30
    for value in (b"", b"no image", "text", None, 5, np.zeros((0, 4), np.uint8), np.zeros(3)):
        assert picture(value) is None


# In a kernel


@pytest.fixture
def shell(monkeypatch):
    """A shell of IPython as a kernel has it, and what it displayed."""
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.kernel = SimpleNamespace()
    yield shell
    InteractiveShell.clear_instance()


def traceback_of(shell, function):
    try:
        function()
    except Exception as error:
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error._render_traceback_()))
    raise AssertionError("no error")


def test_a_traceback_has_the_users_frames_and_the_hint_alone(client, shell):
    def query():
        client.sql("SELECT NOSUCH FROM SYS.CACHES")

    shell.run_line_magic("xmode", "Context")
    text = traceback_of(shell, query)
    assert "test_notebook.py" in text
    assert "NOSUCH" in text
    assert "hint: " in text
    assert "results.py" not in text
    assert "frames inside ignitetf are hidden" in text
    shell.run_line_magic("xmode", "Verbose")
    assert "results.py" in traceback_of(shell, query)
    with pytest.raises(SqlError) as raised:
        query()
    raised.value._render_traceback_()
    assert isinstance(raised.value.__cause__, IgniteTFError)


def test_a_traceback_keeps_the_error_of_the_users_own_generator(client, cache_name, shell):
    def records():
        yield {"K": 1}
        raise ValueError("my own error")

    shell.run_line_magic("xmode", "Context")
    text = traceback_of(shell, lambda: load_dataset(records(), cache_name, client=client, key="K"))
    assert "raise ValueError" in text
    assert "ValueError" in text


def test_a_load_shows_its_progress_after_half_a_second(client, cache_name, shell, monkeypatch):
    import IPython.display

    shown = []

    class Handle:
        update = staticmethod(shown.append)

    def display(what, display_id):
        shown.append(what)
        return Handle

    monkeypatch.setattr(IPython.display, "display", display)
    rows = ({"K": number, "V": time.sleep(0.002)} for number in range(500))
    load_dataset(rows, cache_name, client=client, key="K")
    assert Found(shown[-1]._repr_html_())
    assert "500 rows" in repr(shown[-1])
    shown.clear()
    began = time.monotonic()
    load_dataset({"V": np.arange(3)}, cache_name, client=client, if_exists="replace")
    assert not shown or time.monotonic() - began > 0.5  # a busy machine needs longer


def test_an_interrupted_load_says_how_to_go_on(client, cache_name):
    def records():
        for number in range(100_000):
            if number == 50_000:
                raise KeyboardInterrupt
            yield {"K": number, "V": number}

    with pytest.raises(KeyboardInterrupt) as raised:
        load_dataset(records(), cache_name, client=client, key="K")
    assert cache_name in raised.value.__notes__[-1]


def test_interrupt_kernel_ends_a_load_an_epoch_and_a_query(client, cache_name):
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    address = client.settings.addresses[0]
    cells = {
        "load": f"load_dataset(({{'K': n, 'V': n}} for n in iter(int, 1)), {cache_name!r}, client=c, key='K')",
        "epoch": "while True: [None for b in open_rows('NB_EPOCH', client=c).batches(8)]",
        "query": "c.sql('SELECT COUNT(*) FROM SYSTEM_RANGE(1, 9999999) A, SYSTEM_RANGE(1, 99) B')",
    }
    load_dataset({"V": np.arange(1000)}, "NB_EPOCH", client=client, if_exists="replace")
    kernel, channel = manager.start_new_kernel(kernel_name="python3")
    try:
        run(
            channel,
            f"from ignitetf import connect, load_dataset, open_rows; c = connect({address!r})",
        )
        for cell in cells.values():
            assert run(channel, cell, kernel.interrupt_kernel) == "KeyboardInterrupt"
        assert run(channel, "assert c.sql('SELECT 1').fetchall() == [(1,)]") is None
    finally:
        channel.stop_channels()
        kernel.shutdown_kernel(now=True)
        ignitetf.drop_dataset("NB_EPOCH", client=client)


def run(channel, cell, interrupt=None):
    """Run a cell, interrupt it once it runs; returns the name of its error, if any."""
    asked = channel.execute(cell)
    failed = None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            message = channel.get_iopub_msg(timeout=0.2)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "execute_input" and interrupt is not None:
            time.sleep(1)
            interrupt()
        elif kind == "error":
            failed = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return failed
    raise AssertionError("the cell does not end")


def test_nothing_here_imports_ipython():
    import subprocess

    code = (
        "import sys, ignitetf.notebook as n\n"
        "with n.progress_bar('x', 1) as advance: advance(1, 1)\n"
        "assert not any(m.startswith('IPython') for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
