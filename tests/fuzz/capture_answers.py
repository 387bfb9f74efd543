"""Capture the answers in tests/data/answers from a node: python capture_answers.py HOST:PORT FOLDER

Each file is the body of an answer: of a statement with every SQL type, of a count, of an update, of
the list of caches, of the nodes, of the partitions of a cache, and of the handshake.
"""

import socket
import sys
from pathlib import Path

from ignitetf.net.client import cache_id, connect
from ignitetf.net.statements import statement_request
from ignitetf.wire.codes import Feature, OpCode
from ignitetf.wire.frames import handshake_request, read_length
from ignitetf.wire.requests import nodes_request, partitions_request

TABLE = "P1_ANSWERS"
VALUES = """(1, TRUE, 2, 3, 4, 0.5, 0.25, 12.345, 'text', 'grün', X'0102',
 '123e4567-e89b-12d3-a456-426614174000', DATE '2024-05-01', TIME '10:11:12',
 TIMESTAMP '2024-05-01 10:11:12.123'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
 NULL, NULL, NULL, NULL, NULL)"""
STATEMENTS = {
    "create": f"""CREATE TABLE {TABLE} (ID INT PRIMARY KEY, B BOOLEAN, T TINYINT, S SMALLINT, L BIGINT,
 R REAL, D DOUBLE, N DECIMAL(20, 4), C CHAR(8), V VARCHAR, X VARBINARY, U UUID, DAY DATE, AT TIME,
 STAMP TIMESTAMP)""",
    "update": f"INSERT INTO {TABLE} VALUES {VALUES}",  # nosec B608
    "rows": f"SELECT * FROM {TABLE} ORDER BY ID",  # nosec B608
    "count": f"SELECT COUNT(*) FROM {TABLE}",  # nosec B608
}


def main(address, folder):
    host, port = address.rsplit(":", 1)
    with connect(address) as client:
        client.sql(f"DROP TABLE IF EXISTS {TABLE}").fetchall()
        answers = {
            name: client.call(
                OpCode.QUERY_SQL_FIELDS, statement_request(client, text, (), "PUBLIC", 64, None)
            )
            for name, text in STATEMENTS.items()
        }
        cache = cache_id(f"SQL_PUBLIC_{TABLE}")
        answers["caches"] = client.call(OpCode.CACHE_GET_NAMES)
        answers["nodes"] = client.call(OpCode.CLUSTER_GROUP_NODE_ENDPOINTS, nodes_request())
        answers["partitions"] = client.call(OpCode.CACHE_PARTITIONS, partitions_request(cache))
        client.sql(f"DROP TABLE {TABLE}").fetchall()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(handshake_request((1, 7, 0), Feature(sum(Feature)), None, None))
        size = read_length(connection.recv(4, socket.MSG_WAITALL))
        answers["handshake"] = connection.recv(size, socket.MSG_WAITALL)
    for name, body in answers.items():
        Path(folder, f"{name}.answer").write_bytes(bytes(body))


if __name__ == "__main__":
    main(*sys.argv[1:])
