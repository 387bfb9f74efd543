"""A node that dies while rows are fetched: all of them, or an error that says what to do."""

import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pytest
from helpers.plain_nodes import plain_cluster
from helpers.ports import lasting_port
from pyignite import Client as PyClient

from ignitetf import dbapi
from ignitetf.errors import SqlError
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.node import Node
from ignitetf.tables.removal import drop_dataset

pytestmark = [pytest.mark.node, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]
ROWS = 3_000
LIMIT_S = 30.0
QUERY = "SELECT N, X FROM FETCHED"


@pytest.fixture(scope="module")
def cluster(node_home):
    with Node.start("fetched", port=lasting_port(2), nodes=2, memory="256m") as node:
        with connect(node.addresses) as client:
            made = {"N": np.arange(ROWS), "X": np.zeros((ROWS, 6_000), np.uint8)}
            load_dataset(made, "FETCHED", client=client, partitions=8, backups=1)
        yield node


def killed(pid):
    process = psutil.Process(pid)
    process.kill()
    process.wait(30)


def by_rows(cursor):
    yield from (row[0] for row in cursor)


def by_columns(cursor):
    for batch in pa.RecordBatchReader.from_stream(cursor):
        yield from batch["N"].to_pylist()


WAYS = {"rows": by_rows, "columns": by_columns}


def fetched(cursor, way, kill):
    """What came of a fetch amid which a node dies: the rows, and the error."""
    found, begun = [], time.monotonic()
    try:
        for number in WAYS[way](cursor):
            found.append(number)
            if len(found) == 200:
                kill()
    except dbapi.Error as error:
        assert isinstance(error, dbapi.OperationalError) and error.hint, repr(error)
        return found, error
    except (pa.ArrowException, OSError) as error:  # of pyarrow, with our text
        assert "connection" in str(error) or "node" in str(error).lower(), error
        return found, error
    finally:
        assert time.monotonic() - begun < LIMIT_S
    return found, None


def exporting(address, path):
    """A process that writes the rows, once it has begun to."""
    query = "SELECT A.N, A.X FROM FETCHED A, FETCHED B"
    words = [sys.executable, "-m", "ignitetf", "query", query, "--to", str(path)]
    done = subprocess.Popen([*words, "--address", address], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + LIMIT_S
    while not any(part.stat().st_size for part in path.parent.iterdir()):
        assert time.monotonic() < until
        assert done.poll() is None, done.stderr.read()
        time.sleep(0.05)
    return done


def test_a_node_that_dies_amid_a_fetch_costs_no_row_silently(cluster, tmp_path):
    own, other = cluster.pids
    first = cluster.addresses[0]
    connection = dbapi.connect(first, page_rows=16)
    # The other node dies: its copies are here.
    cursor = connection.execute(QUERY)
    found, error = fetched(cursor, "rows", lambda: killed(other))
    assert len(set(found)) == len(found)
    assert error is not None or len(found) == ROWS
    # Once the cluster has noticed, everything is there, by rows and by columns.
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            found = connection.execute(QUERY).fetch_numpy()["N"]
            break
        except dbapi.OperationalError:
            assert time.monotonic() < until
            time.sleep(0.2)
    assert sorted(found.tolist()) == list(range(ROWS))
    # The node that sends the rows dies, under a cursor, a stream and an export.
    waiting = connection.execute(QUERY)
    export = exporting(first, tmp_path / "x.csv")
    found, error = fetched(connection.execute(QUERY), "rows", lambda: killed(own))
    assert error is not None and 200 <= len(found) < ROWS
    found, error = fetched(waiting, "columns", lambda: None)
    assert error is not None and len(found) < ROWS
    _, told = export.communicate(timeout=LIMIT_S)
    assert export.returncode == 1 and "hint: " in told and "Traceback" not in told, told
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(dbapi.OperationalError) as caught:
        connection.execute("SELECT 1")
    assert caught.value.hint
    connection.close()


VIEWS = {
    "SHOWN": "SELECT COUNT(*) FROM SHOWN",
    "over another": "SELECT COUNT(*) FROM FEW",
    "two at once": "SELECT COUNT(*) FROM SECOND A JOIN SHOWN B ON A.N = B.N",
}


@pytest.fixture(scope="module")
def joined(node_home, tmp_path_factory):
    """The address of a node that joined a plain cluster after the views were made."""
    with plain_cluster(node_home, tmp_path_factory.mktemp("joined"), count=2) as plain:
        with connect(plain.addresses[0]) as client:
            for name in ("SHOWN", "SECOND"):
                load_dataset({"N": np.arange(50)}, name, client=client, backups=1)
            client.sql("CREATE VIEW FEW AS SELECT N FROM SHOWN").close()
            client.sql("CREATE TABLE T (A INT PRIMARY KEY, B INT)").close()
            client.sql("CREATE VIEW GONE AS SELECT A FROM T").close()
            client.sql("DROP TABLE T").close()
        plain.restart(1)
        yield plain.addresses[1]


def test_views_work_on_a_node_that_joined_later(joined):
    with connect(joined) as client, dbapi.connect(joined) as connection:
        for statement in VIEWS.values():
            assert connection.execute(statement).fetchall() == [(50,)]
            assert client.sql(statement).fetchall() == [(50,)]
        with pytest.raises(SqlError, match="GONE"):
            client.sql("SELECT * FROM GONE")
        texts = dict(client.sql("SELECT NAME, SQL FROM SYS.VIEWS"))
        assert texts["SHOWN"] == 'SELECT * FROM "SHOWN__ROWS"' and texts["FEW"].endswith("SHOWN")
        load_dataset({"N": np.arange(7)}, "SHOWN", client=client, if_exists="replace")
        assert client.sql(VIEWS["SHOWN"]).fetchall() == [(7,)]


def test_what_is_dropped_through_one_node_can_be_made_through_another(joined):
    with connect(joined) as client:
        nodes = [address for node in client.nodes() for address in node.addresses[:1]]
        for number in range(8):
            with connect(nodes[number % 2]) as each:
                load_dataset({"N": np.arange(number + 1)}, "AGAIN", client=each, backups=1)
                drop_dataset("AGAIN", client=each)


def test_a_member_that_is_started_again_has_the_views(node_home):
    """For other programs as well, which do not make them again."""
    with Node.start("views", port=lasting_port(2), nodes=2, memory="256m") as node:
        with connect(node.addresses) as client:
            load_dataset({"N": np.arange(50)}, "SHOWN", client=client, backups=1)
        killed(node.pids[1])
        host, port = Node.start("views").addresses[1].split(":")
        other = PyClient()
        with other.connect(host, int(port)), other.sql(VIEWS["SHOWN"]) as found:
            assert list(found) == [[50]]
