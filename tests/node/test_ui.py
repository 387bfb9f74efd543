"""`ignitetf ui`: every page, for those who may see it, and nothing for anybody else."""

import contextlib
import html
import http.client
import signal
import socket
import subprocess
import threading
import time
from collections import Counter, deque
from html.parser import HTMLParser
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import numpy as np
import pytest
from helpers.interruptible import COMMAND
from helpers.ports import free_port

from ignitetf.errors import SqlError
from ignitetf.jobs.logs import LogWriter
from ignitetf.jobs.record import Job, WorkerStatus
from ignitetf.jobs.store import JobStore, utc_now
from ignitetf.load.loader import load_dataset
from ignitetf.sql.tokens import reads_only
from ignitetf.tables.catalog import drop_manifest

pytestmark = pytest.mark.node
TOKEN = "a token for tests only"
ROWS = 330
EPOCH = {"cache": "UI_ROWS", "epoch": 0, "shard": [0, 1], "rows": 7, "ended": False}
OF_A_KIND = 6
VOID = {"meta", "link", "img", "input", "br"}
ADDRESSES = ("href", "src", "action", "hx-get", "hx-post")


def made_rows():
    rng = np.random.default_rng(1)
    for i in range(ROWS):
        yield {
            "IMAGE": rng.integers(0, 256, (6, 5, 1), dtype=np.uint8),
            "LABEL": i % 3,
            "SCORE": float(rng.normal()),
            "CITY": ("Oslo", "<script>alert(1)</script>", "it's")[i % 3],
        }


class Site:
    """A running server and a browser that knows its token."""

    def __init__(self, address, *options):
        self.port = free_port()
        words = ("ui", "--no-browser", "--port", str(self.port), "--token", TOKEN)
        self.process = subprocess.Popen(
            [*COMMAND, *words, "--address", address, *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert f"http://127.0.0.1:{self.port}/?token=" in self.process.stdout.readline()
        status, headers, _ = self.ask(f"/?{urlencode({'token': TOKEN})}", cookie="")
        assert (status, headers["location"]) == (303, "/")
        assert {"httponly", "samesite=strict"} <= set(headers["set-cookie"].lower().split("; "))
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(self, path, *, method="GET", body=None, cookie=None, **headers):
        """Return status, headers and body."""
        given = {"Cookie": self.cookie if cookie is None else cookie}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        with contextlib.closing(connection):
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode("utf-8", "replace")

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.communicate(timeout=10)
        return self.process.returncode


@pytest.fixture(scope="module")
def names(client):
    found = {"rows": "UI_ROWS", "blocks": "UI_BLOCKS"}
    for layout, name in found.items():
        rows = list(made_rows())
        load_dataset(rows, name, client=client, partitions=4, layout=layout, if_exists="replace")
    yield found
    for name in found.values():
        client.sql(f'DROP TABLE IF EXISTS "{name}"').close()
        drop_manifest(client, name)
        if client.cache_exists(name):
            client.destroy_cache(name)


@pytest.fixture(scope="module")
def site(address, names):
    found = Site(address)
    yield found
    found.end()


class Page(HTMLParser):
    """The addresses and forms of a page, which must be well-formed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.addresses, self.next = [], [], [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        self.addresses += [attributes[name] for name in ADDRESSES if name in attributes]
        if tag == "a":
            self.links.append(attributes["href"])
            if attributes.get("rel") == "next":
                self.next = attributes["href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_pages_show_each_row_once(site, names, layout):
    expected = [i for i in range(ROWS) if i % 3 == 1]
    for filters, keys in (((), range(ROWS)), ((("f", "LABEL:eq:1"),), expected)):
        path, found = f"/rows?{urlencode([('data', names[layout]), *filters])}", []
        while path is not None:
            page = Page(site.ask(path)[2])
            rows = [a for a in page.links if a.startswith("/row?")]
            found += rows
            path = page.next
        assert len(found) == len(set(found)) == len(keys)
        if layout == "rows":
            assert [int(parse_qs(urlsplit(a).query)["key"][0]) for a in found] == list(keys)


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("/?", "/"),
        ("/sql?q=SELECT+1&", "/sql?q=SELECT+1"),
        ("/rows?data=UI_ROWS&", "/rows?data=UI_ROWS"),
        ("//evil.example/?", "/evil.example/"),
        ("/\\evil.example/?", "/evil.example/"),
    ],
)
def test_a_link_with_the_token_opens_its_page(site, link, place):
    """The address loses the token on the way, and the way never leads to another server."""
    status, headers, _ = site.ask(f"{link}token={quote(TOKEN)}", cookie="")
    assert (status, headers["Location"]) == (303, place)
    assert "ignitetf_ui" in headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELEC 1", "SELECT?"),
        ("DELETE FROM UI_ROWS", "only reads"),
        ("SELECT 'a", "not closed"),
        ("SELECT ?", "in its place"),
        ("SHOW TABLES", "the page Data"),
        ("SELECT LABEEL FROM UI_ROWS", "did you mean LABEL?"),
        ("SELECT * FROM UI_ROWZ", "did you mean UI_ROWS?"),
    ],
)
def test_a_mistake_in_sql_is_named(site, text, said):
    assert said in html.unescape(site.ask(f"/sql?{urlencode({'q': text})}")[2])


def test_others_are_refused(site):
    assert site.ask("/", cookie="")[0] == 401
    assert site.ask("/rows?data=UI_ROWS", cookie="")[0] == 401
    assert site.ask("/?token=another-token-altogether", cookie="")[0] == 401
    assert site.ask("/sql?token=another-token-altogether", cookie="")[0] == 401
    for host in (
        "evil.example",
        f"evil.example:{site.port}",
        "127.0.0.1",
        "localhost.evil.example",
    ):
        assert site.ask("/", Host=host)[0] == 421
    own = f"http://127.0.0.1:{site.port}"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https{own[4:]}"):
        assert site.ask("/", Origin=origin)[0] == 403
    for kind in ("cross-site", "same-site"):
        assert site.ask("/", Sec_Fetch_Site=kind)[0] == 403
        assert site.ask(f"/?token={quote(TOKEN)}", cookie="", Sec_Fetch_Site=kind)[0] == 403
    assert site.ask("/", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    assert site.ask("/", Host=f"localhost:{site.port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert site.ask("/sql", method=method)[0] == 405
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/guard.py", "/.env"):
        assert site.ask(path)[0] == 404


NASTY = (
    "'; DROP TABLE UI_ROWS; --", '" OR 1=1 --', "../../etc/passwd", "%00", "\x7f\t", "１２",
    "<script>alert(1)</script>", "9" * 40, "-1", "0-99999", "x" * 5_000, "LABEL:eq:1 OR 1=1",
    "_KEY:eq:1", 'LABEL"--:eq:1', "LABEL:eq:" + "9" * 30, "SCORE:ge:nan", "CITY:eq:' OR ''='",
    "igfs://x/../..", "UI_ROWS__ROWS", "IGNITETF_CATALOG",
)  # fmt: skip
PARAMETERS = {
    "/rows": ("data", "after", "f"),
    "/row": ("data", "key", "at"),
    "/images": ("data", "after", "f"),
    "/image": ("data", "key", "at", "size"),
    "/partitions": ("data",),
    "/about": ("data",),
    "/job": ("id",),
    "/files": ("path",),
    "/sql": ("q",),
}


def test_no_parameter_reaches_further_than_it_should(site, client):
    valid = {"data": "UI_ROWS", "key": "0"}
    for path, parameters in PARAMETERS.items():
        for name in parameters:
            for value in NASTY:
                given = {n: v for n, v in valid.items() if n in parameters and n != name}
                status, _, text = site.ask(f"{path}?{urlencode({**given, name: value})}")
                assert status in (200, 400, 404), (path, name, value, text)
                assert "<script>alert" not in text and "Traceback" not in text
    assert site.ask("/rows?data=%ff%fe")[0] in (400, 404)
    assert client.cache_size("UI_ROWS") == ROWS


WRITES = (
    "DELETE FROM UI_ROWS", "drop table UI_ROWS", "SELECT 1; DELETE FROM UI_ROWS",
    "/* SELECT */ DELETE FROM UI_ROWS", "-- SELECT\nDELETE FROM UI_ROWS",
    "EXPLAIN DELETE FROM UI_ROWS", "EXPLAIN ANALYZE DELETE FROM UI_ROWS",
    "EXPLAIN PLAN FOR DELETE FROM UI_ROWS", "UPDATE UI_ROWS SET LABEL = 1",
    "MERGE INTO UI_ROWS (ID, LABEL) VALUES (1, 1)", "INSERT INTO UI_ROWS (ID) VALUES (999)",
    "CREATE TABLE X (A INT PRIMARY KEY, B INT)", "ALTER TABLE UI_ROWS ADD COLUMN Z INT",
    "SELECT * FROM UI_ROWS FOR UPDATE", "KILL QUERY '1'", "SET STREAMING ON", "CALL 1",
    "SELECT '", "CREATE INDEX I ON UI_ROWS (LABEL)", "(DELETE FROM UI_ROWS)",
)  # fmt: skip


def test_nothing_is_written(site, client, names):
    for text in WRITES:
        assert not reads_only(text)
        status, _, page = site.ask(f"/sql?{urlencode({'q': text})}")
        assert status == 400 and 'role="alert"' in page, text
    # The second wall: the node is told that it shall be a query.
    table = client.sql("SELECT TABLE_NAME FROM SYS.TABLES WHERE CACHE_NAME = ?", ("UI_ROWS",))
    ((name,),) = table.fetchall()
    with pytest.raises(SqlError):
        client.sql(f'DELETE FROM "{name}"', only_query=True)
    assert client.cache_size("UI_ROWS") == ROWS
    for text in ("SELECT COUNT(*) FROM UI_ROWS", "explain select 1", "/* x */ SELECT ';' -- y"):
        assert site.ask(f"/sql?{urlencode({'q': text})}")[0] == 200
    before = client.cache_names()
    site.ask("/files")
    assert client.cache_names() == before


def test_write_takes_the_option_and_the_form(address, client, names):
    site = Site(address, "--write")
    body = {"q": "UPDATE UI_ROWS SET SCORE = 7 WHERE LABEL = 0"}

    def sevens():
        return client.sql("SELECT COUNT(*) FROM UI_ROWS WHERE SCORE = 7").fetchall()[0][0]

    def post(form, **headers):
        headers = {"Content_Type": "application/x-www-form-urlencoded", **headers}
        return site.ask("/sql", method="POST", body=urlencode(form), **headers)

    with contextlib.ExitStack() as stack:
        stack.callback(site.end)
        page = site.ask("/sql")[2]
        secret = page.partition('name="secret" value="')[2].partition('"')[0]
        assert len(secret) > 20
        assert site.ask(f"/sql?{urlencode(body)}")[0] == 200  # shown, not run
        assert post(body)[0] == 403
        assert post({**body, "secret": secret[:-1]})[0] == 403
        assert post({**body, "secret": secret}, Origin="http://evil.example")[0] == 403
        assert post({**body, "secret": secret}, Content_Type="text/plain")[0] == 415
        assert sevens() == 0
        status, _, page = post({**body, "secret": secret})
        assert status == 200 and f"{ROWS // 3} rows changed" in page
        assert sevens() == ROWS // 3


def test_every_link_leads_to_a_well_formed_page_of_this_server(site, client):
    job = Job("ui-test", "train.py", ("<b>",), created=utc_now(), state="running")
    JobStore(client).put(job)
    JobStore(client).beat(job.id)
    JobStore(client).beat_worker(job.id, WorkerStatus(0, "chief", epochs=(EPOCH,)))
    writer = LogWriter(client.settings, job.id, 1)
    writer.write("chief", "<i>loss</i> 0.5")
    assert writer.close()
    first = ["/", "/rows?data=UI_BLOCKS", "/rows?data=UI_ROWS", "/job/live?id=none"]
    waiting, seen, kinds = deque(first), set(), Counter()
    while waiting:
        path = waiting.popleft()
        kind = urlsplit(path).path
        if path in seen or path.startswith("#") or kinds[kind] == OF_A_KIND:
            continue
        seen.add(path)
        kinds[kind] += 1
        status, headers, text = site.ask(path)
        assert status == (404 if "none" in path else 200), path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        if headers["content-type"].startswith("text/html"):
            assert not any(raw in text for raw in ("<script>alert", "<b></b>", "<i>loss"))
            page = Page(text)
            assert all(a.startswith(("/", "#")) and not a.startswith("//") for a in page.addresses)
            waiting.extend(a for a in page.addresses if is_ours(a))
    assert {"/rows", "/row", "/images", "/image", "/partitions", "/about", "/sql", "/activity",
            "/job", "/files", "/nodes", "/nodes/live"} <= kinds.keys()  # fmt: skip
    JobStore(client).remove(job.id)


def is_ours(address):
    """Whether a page is one that other tests do not change."""
    return any(name in address for name in ("UI_", "ui-test", "path=")) or "?" not in address


class Relay:
    """A way to the node that can be closed and opened again."""

    def __init__(self, target):
        self._target, self._port, self._open = target, free_port(), []
        self.address = f"127.0.0.1:{self._port}"

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, listener):
        host, _, port = self._target.rpartition(":")
        with contextlib.suppress(OSError):
            while True:
                here = listener.accept()[0]
                there = socket.create_connection((host, int(port)))
                self._open += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


def test_a_lost_node_is_told_and_the_pages_recover(address, names):
    relay = Relay(address)
    relay.open()
    site = Site(relay.address)
    paths = ("/", "/rows?data=UI_ROWS", "/images?data=UI_BLOCKS", "/nodes", "/files")
    with contextlib.ExitStack() as stack:
        stack.callback(site.end)
        assert [site.ask(path)[0] for path in paths] == [200] * len(paths)
        relay.close()
        for path in paths:
            status, _, text = site.ask(path)
            assert status == 503 and "does not answer" in text and 'hx-get="/up"' in text
        # A part that is asked for again and again says so in its place.
        status, _, text = site.ask("/activity/live", HX_Request="true")
        assert status == 200 and "does not answer" in text
        relay.open()
        assert [site.ask(path)[0] for path in paths] == [200] * len(paths)
        assert site.ask("/up", HX_Request="true")[1]["hx-refresh"] == "true"
        relay.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_it_ends_at_once_with_a_statement_under_way(address, names, number):
    site = Site(address)
    text = "SELECT COUNT(*) FROM SYSTEM_RANGE(1, 1000000) A, SYSTEM_RANGE(1, 1000000) B"
    path = f"/sql?{urlencode({'q': text})}"
    asking = threading.Thread(target=lambda: _quietly(site.ask, path), daemon=True)
    asking.start()
    time.sleep(0.5)
    begin = time.monotonic()
    assert site.end(number) == 128 + number
    assert time.monotonic() - begin < 4
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", site.port))
    asking.join(5)


def _quietly(function, *args):
    with contextlib.suppress(OSError, http.client.HTTPException):
        function(*args)
