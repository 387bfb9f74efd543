"""A SQL table as a data set: rows that the application writes are what the training reads.

python examples/lessons/sql_table.py [--rows N]
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from ignitetf import IgniteDataset, connect, load_dataset

TABLE = "LESSON_HOUSES"


def fill(client, rows):
    """A table as any SQL client would make it, and rows: a few by SQL, the others in bulk."""
    client.sql(f"DROP TABLE IF EXISTS {TABLE}")
    client.sql(
        f"CREATE TABLE {TABLE} (ID BIGINT PRIMARY KEY, AREA DOUBLE, YEAR INT, PRICE DOUBLE)"
        f' WITH "template=p8, cache_name={TABLE}"'
    )
    for number, area, year in ((0, 50.0, 1950), (1, 120.0, 2020), (2, 80.0, 1990)):
        client.sql(f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)", (number, area, year, 3 * area))
    dice = np.random.default_rng(1)
    area, year = dice.uniform(30, 200, rows), dice.integers(1900, 2026, rows, dtype=np.int32)
    table = {"AREA": area, "YEAR": year, "PRICE": 3 * area}
    load_dataset(table, f"{TABLE}_BULK", client=client, partitions=8, if_exists="replace")


def by_node(name):
    """Selected on the node: only rows that match, and only these fields, are sent."""
    return IgniteDataset(
        name, fields=["AREA", "PRICE"], where="YEAR >= ?", where_params=(2013,)
    ).batch(1024)


def by_filter(name):
    """The same rows, selected here: all are sent."""
    rows = IgniteDataset(name).batch(1024)
    return rows.map(
        lambda x: {
            "val": {
                field: tf.boolean_mask(x["val"][field], x["val"]["YEAR"] >= 2013)
                for field in ("AREA", "PRICE")
            }
        }
    )


def total(batches):
    """Sum of the prices, and the seconds that it took."""
    began = time.perf_counter()
    add = batches.reduce(np.float64(0), lambda sum_, x: sum_ + tf.reduce_sum(x["val"]["PRICE"]))
    return float(add), time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with connect() as client:
        fill(client, given.rows)
    table = IgniteDataset(TABLE, where="YEAR > ?", where_params=(1980,))
    print("in the table after 1980:", sorted(float(x["val"]["AREA"]) for x in table))
    ways, seconds = {"node": by_node, "filter": by_filter}, {"node": [], "filter": []}
    sums = set()
    for number in range(given.rounds + 1):
        for name in sorted(ways, reverse=number % 2):
            found, took = total(ways[name](f"{TABLE}_BULK"))
            sums.add(round(found))
            seconds[name].append(took)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s")
    print(f"selecting here takes {medians['filter'] / medians['node']:.2f} times as long")
    print("same sum:", len(sums) == 1)


if __name__ == "__main__":
    main()
