"""A random-operation model checker: real clusters against a dictionary.

    python tests/model/checker.py ADDRESS[,ADDRESS...] [--runs N] [--seed S] [--steps N]

A run is a list of steps: the name of an operation, and a seed for its choices. The law: a data set
is what the cluster holds when it is opened. An epoch gives exactly that, or raises `DataChanged`;
rows whose load or statement was acknowledged are there once, with their values, until they are
removed; after a drop nothing of the name is left. A run that breaks it is repeated with fewer
steps, as long as it still does, and printed with its seed.
"""

import argparse
import contextlib
import functools
import random
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from killable import Loaders, Records, row_of

from ignitetf import open_rows
from ignitetf.errors import (
    CacheExists,
    CacheNotFound,
    ConfigError,
    ConnectError,
    DataChanged,
    IgniteTFError,
    SchemaError,
    SqlError,
)
from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.net.client import connect
from ignitetf.read.divide import list_splits, make_splits
from ignitetf.tables.catalog import SEPARATOR, catalog
from ignitetf.tables.removal import clear_cache, drop_cache
from ignitetf.wire.codes import Feature

NAMES = ("A", "B")
STEPS = 25
_SHRINKS = 40


class Violation(AssertionError):
    """A result that the law does not allow."""


@dataclass
class Unfinished:
    """A load that was killed."""

    generation: int
    rows: int
    options: dict


@dataclass
class DataSet:
    """What a data set has to hold.

    Attributes:
        rows: N, T and G by key; None if there is no such data set.
        options: How it was loaded.
        keys_written: Whether SQL has added or removed rows since the first load.
        values_written: Whether it has changed values.
        mixed: Whether rows were appended to such rows, so that no checksum of all is known.
        split: Seed of the division into splits; None without one.
        unfinished: The load that was killed, until it is resumed or replaced.
    """

    rows: dict | None = None
    options: dict = field(default_factory=dict)
    keys_written: bool = False
    values_written: bool = False
    mixed: bool = False
    split: int | None = None
    unfinished: Unfinished | None = None

    @property
    def settled(self):
        return self.unfinished is None and bool(self.rows)


class Api:
    """How the checker reaches ignitetf; tests break it on purpose."""

    def load(self, source, name, **options):
        return load_dataset(source, name, **options)

    def read(self, rows, batch):
        """Yield batches of (key, (N, T, G)), and where each ends the state."""
        batches = rows.batches(batch)
        with batches:
            for found in batches:
                yield rows_of(found), batches

    def drop(self, client, name):
        drop_cache(client, name)


def rows_of(columns):
    value = columns["val"]
    texts = [t.decode() if isinstance(t, bytes) else str(t) for t in value["T"].tolist()]
    values = zip(value["N"].tolist(), texts, value["G"].tolist(), strict=True)
    return list(zip(columns["key"].tolist(), values, strict=True))


class Run:
    """One run.

    Args:
        addresses: The cluster.
        loaders: Where loads are killed.
        prefix: What all names begin with.
        backups: Copies of each partition.
        nodes: What kills a node and brings it back; None if none is killed.
        api: How ignitetf is reached.
        templates: Whether the cluster makes caches with any number of partitions.
    """

    def __init__(
        self, addresses, loaders, prefix, *, backups=0, nodes=None, api=None, templates=True
    ):
        self.addresses, self.loaders, self.prefix = list(addresses), loaders, prefix
        self.backups, self.nodes, self.api = backups, nodes, api or Api()
        self.templates = templates
        self.sets = {name: DataSet() for name in NAMES}
        self.generation = 0
        self.client = self.connected()
        with self.client.channel() as channel:
            self.by_partition = bool(channel.features & Feature.QUERY_PARTITIONS_BATCH_SIZE)
        self.log = []

    def connected(self):
        return connect(self.addresses)

    def close(self):
        for name in NAMES:
            with contextlib.suppress(IgniteTFError):
                drop_cache(self.client, self.full(name))
        self.client.close()

    def full(self, name):
        return f"{self.prefix}{name}"

    def table(self, name):
        """Return the SQL name: clusters before 2.17 have no views."""
        return self.full(name) if self.client.has_views else f"{self.full(name)}__ROWS"

    def step(self, operation, seed):
        """Do one step; raises Violation."""
        choice = random.Random(seed)
        name = choice.choice(NAMES)
        try:
            done = getattr(self, f"do_{operation}")(choice, name, self.sets[name])
            self.log.append((operation, name, done))
            for each, known in self.sets.items():
                if each == name or choice.random() < 0.2:
                    self.check(each, known, choice)
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{operation} {name}: {told(error)}") from error

    # What is there

    def check(self, name, known, choice):
        """Compare what the cluster holds with the model."""
        full = self.full(name)
        if known.unfinished is not None:
            self.check_unfinished(name, known)
            return
        if known.rows is None:
            require(not self.client.cache_exists(full), f"{name} exists")
            return
        if not known.rows:
            return
        rows = open_rows(full, client=self.client, shard=(0, 1))
        self.same(known, self.all_rows(rows), f"all rows of {name}")
        require(len(rows) == len(known.rows), f"{name}: {len(rows)} rows by len")
        if known.options["layout"] == "rows" and choice.random() < 0.5:
            found = self.client.sql(f"SELECT ID, N, T, G FROM {self.table(name)}")
            self.same(known, [(k, (n, t, g)) for k, n, t, g in found], f"SQL of {name}")
        elif known.options.get("index") and self.client.has_views:
            ((count,),) = self.client.sql(f"SELECT COUNT(*) FROM {full}")
            require(count == len(known.rows), f"{name}: the index has {count} rows")

    def check_unfinished(self, name, known):
        """Rows that were there are, with some of the killed load, or all of it alone."""
        load = known.unfinished
        try:
            rows = open_rows(self.full(name), client=self.client, shard=(0, 1))
            found = self.all_rows(rows)
        except (CacheNotFound, SchemaError):
            require(not known.rows, f"{name} is gone")
            return
        except DataChanged:
            require(load.options["if_exists"] == "append", f"{name} has changed")
            return
        new = {row_of(load.generation, number) for number in range(load.rows)}
        old = known.rows or {}
        keys = dict(found)
        require(len(keys) == len(found), f"{name}: keys are doubled")
        if load.options["if_exists"] == "replace" and old:
            whole = keys == old or (len(keys) == load.rows and set(keys.values()) == new)
            require(whole, f"{name}: neither the old nor the new rows")
            return
        require(all(keys.get(k) == v for k, v in old.items()), f"{name}: old rows are lost")
        more = [v for k, v in found if k not in old]
        require(len(set(more)) == len(more) and set(more) <= new, f"{name}: unknown rows")

    def all_rows(self, rows, batch=None):
        return [row for found, _ in self.api.read(rows, batch) for row in found]

    def same(self, known, found, what, allowed=None):
        """Require that rows are those of the model, each once."""
        wanted = known.rows if allowed is None else allowed
        keys = dict(found)
        doubled = len(found) - len(keys)
        lost, more = wanted.keys() - keys.keys(), keys.keys() - wanted.keys()
        other = [k for k in keys.keys() & wanted.keys() if keys[k] != wanted[k]]
        if doubled or lost or more or other:
            raise Violation(
                f"{what}: {doubled} doubled, {len(lost)} lost {sorted(lost)[:5]}, {len(more)} that"
                f" are not there {sorted(more)[:5]}, {len(other)} other values {other[:3]}"
            )

    # Loads

    def options(self, choice):
        layout = choice.choice(["rows", "rows", "blocks"])
        index = choice.choice([(), (), ("G",)])
        partitions = choice.choice([1, 4, 16]) if self.templates else None
        return {
            "layout": layout,
            "index": list(index),
            "partitions": partitions,
            "backups": self.backups,
        }

    def new_source(self, choice):
        self.generation += 1
        return self.generation, choice.choice([1, 3, 40, 150, 400])

    def do_load(self, choice, name, known):
        mode = choice.choice(["error", "append", "replace", "resume"])
        if known.unfinished is not None and mode == "append":
            # Whether the killed load began, or had ended, is not known.
            mode = "replace"
        options = self.options(choice)
        if mode == "append" and known.rows:
            options["layout"] = known.options["layout"]
            options["index"] = known.options["index"]
        generation, count = self.new_source(choice)
        full, source = self.full(name), Records(generation, count)
        refused, must = self.refusal(mode, known)
        options["if_exists"] = mode
        try:
            report = self.api.load(source, full, client=self.client, **options)
        except refused:
            return "refused"
        require(not must, f"load {mode} into {name} was not refused")
        require(report.rows == count, f"{name}: report of {report.rows} rows of {count}")
        self.loaded(name, known, generation, count, options)
        return f"{mode} {count}"

    def refusal(self, mode, known):
        """Return the errors that may refuse a load, and whether one has to."""
        if mode == "replace":
            return (), False
        if known.unfinished is not None:
            # A load that was killed early has left nothing that is in the way.
            return (CacheExists, ConfigError), bool(known.rows)
        if known.rows is None:
            return (), False
        if mode == "append":
            return (), False
        return (CacheExists,) if mode == "error" else (ConfigError,), True

    def loaded(self, name, known, generation, count, options):
        """Take the rows of a load that was acknowledged into the model."""
        found = self.all_rows(open_rows(self.full(name), client=self.client, shard=(0, 1)))
        new = {row_of(generation, number) for number in range(count)}
        old = known.rows or {}
        if options["if_exists"] in ("append",) and old:
            appended = [(k, v) for k, v in found if k not in old]
            known.mixed = known.mixed or known.keys_written
            self.same(known, [(k, v) for k, v in found if k in old], f"rows of {name} before")
        else:
            appended, old = found, {}
            known.keys_written = known.values_written = known.mixed = False
            known.split = None
            known.options = options
        values = [v for _, v in appended]
        require(len(values) == len(new) and set(values) == new, f"{name}: other rows than loaded")
        require(len(dict(appended)) == len(appended), f"{name}: keys are doubled")
        known.rows, known.unfinished = {**old, **dict(appended)}, None

    def do_killed_load(self, choice, name, known):
        if known.unfinished is not None:
            return None
        mode = choice.choice(["append", "replace", "append" if known.rows else "error"])
        options = self.options(choice)
        if mode == "append" and known.rows:
            options["layout"] = known.options["layout"]
            options["index"] = known.options["index"]
        options["if_exists"] = mode
        generation, count = self.new_source(choice)
        self.loaders.load_and_kill(
            choice.random() ** 2 * 1.5,
            address=self.addresses[0],
            name=self.full(name),
            generation=generation,
            rows=count,
            pause=choice.choice([0.0, 0.02, 0.1]),
            options=options,
        )
        known.unfinished = Unfinished(generation, count, options)
        if known.rows is not None and not known.rows:
            known.rows = None
        return f"{mode} {count}"

    def do_resume(self, choice, name, known):
        load = known.unfinished
        if load is None:
            return None
        full = self.full(name)
        options = {**load.options, "if_exists": "resume"}
        source = Records(load.generation, load.rows)
        try:
            self.api.load(source, full, client=self.client, **options)
        except ConfigError:
            # It was killed before it had begun.
            known.unfinished = None
            require(bool(known.rows), f"{name} cannot be resumed")
            return "not begun"
        self.loaded(name, known, load.generation, load.rows, load.options)
        return "resumed"

    def do_copy(self, choice, name, known):
        other = next(each for each in NAMES if each != name)
        target = self.sets[other]
        if not known.settled or known.options["layout"] != "rows" or target.unfinished:
            return None
        found = self.client.sql(f"SELECT N, T, G FROM {self.table(name)}")
        options = {**self.options(choice), "if_exists": "replace"}
        self.api.load(found, self.full(other), client=self.client, **options)
        rows = self.all_rows(open_rows(self.full(other), client=self.client, shard=(0, 1)))
        wanted = sorted(known.rows.values())
        require(sorted(v for _, v in rows) == wanted, f"{other} is no copy of {name}")
        self.sets[other] = DataSet(dict(rows), options)
        return len(rows)

    # SQL

    def do_insert(self, choice, name, known):
        if not self.can_write(known):
            return None
        self.generation += 1
        made = {}
        for number in range(choice.choice([1, 2, 30])):
            key = choice.choice([max(known.rows) + 1 + len(made), choice.randrange(-1000, 5000)])
            made[key] = row_of(self.generation, number)
        taken = made.keys() & known.rows.keys()
        fresh = {k: v for k, v in made.items() if k not in taken}
        for key in list(taken)[:1]:
            with contextlib.suppress(SqlError):
                self.insert(name, {key: made[key]})
                raise Violation(f"{name}: key {key} was inserted twice")
        if fresh:
            self.insert(name, fresh)
            known.rows.update(fresh)
            known.keys_written = True
        return len(fresh)

    def insert(self, name, rows):
        values = ", ".join(f"({k}, {n}, '{t}', {g})" for k, (n, t, g) in rows.items())
        self.client.sql(f"INSERT INTO {self.table(name)} (ID, N, T, G) VALUES {values}").close()

    def can_write(self, known):
        return known.settled and known.options["layout"] == "rows"

    def do_update(self, choice, name, known):
        if not self.can_write(known):
            return None
        self.generation += 1
        group, text = choice.randrange(5), f"u{self.generation}"
        self.client.sql(f"UPDATE {self.table(name)} SET T = '{text}' WHERE G = {group}").close()
        for key, (n, t, g) in known.rows.items():
            known.rows[key] = (n, text if g == group else t, g)
            known.values_written |= g == group
        return group

    def do_delete(self, choice, name, known):
        if not self.can_write(known):
            return None
        keys = choice.sample(
            sorted(known.rows), min(choice.choice([1, 5, 60]), len(known.rows) - 1)
        )
        if keys:
            listed = ", ".join(map(str, keys))
            self.repeatable(f"DELETE FROM {self.table(name)} WHERE ID IN ({listed})")
            for key in keys:
                del known.rows[key]
            known.keys_written = True
        return len(keys)

    def repeatable(self, statement):
        """Run a statement; once more if a killed node leaves it open whether it was executed."""
        try:
            self.client.sql(statement).close()
        except ConnectError:
            if self.nodes is None:
                raise
            self.client.sql(statement).close()

    # Epochs

    def order(self, choice, known):
        order = choice.choice(["scan", "scan", "keys", "global"])
        if order == "keys" and known.options["layout"] == "blocks":
            order = "global"
        shuffle = choice.choice([None, 7])
        if order == "keys":
            shuffle = None
        return {"order": order, "shuffle": shuffle, "epoch": choice.randrange(3)}

    def do_epoch(self, choice, name, known):
        if not known.settled:
            return None
        asked, wanted = self.order(choice, known), known.rows
        if choice.random() < 0.3:
            group = choice.randrange(5)
            asked["where"] = f"G = {group}"
            wanted = {k: v for k, v in wanted.items() if v[2] == group}
        elif known.split is not None and choice.random() < 0.5:
            if known.options["layout"] == "blocks":
                asked["order"] = "scan"
            return self.split_epoch(known, self.full(name), asked)
        policy = choice.choice(["error", "warn"])
        shards, batch = choice.choice([1, 1, 2, 3]), choice.choice([1, 7, 64, 1000])
        if "where" in asked and (known.options["layout"] == "blocks" or not self.by_partition):
            return self.refused_where(name, asked)
        full, found = self.full(name), []
        opened = [
            open_rows(full, client=self.client, shard=(i, shards), on_change=policy, **asked)
            for i in range(shards)
        ]
        for rows in opened:
            found += self.all_rows(rows, batch)
        self.same(known, found, f"epoch of {name}, {asked}, {shards} shards", wanted)
        again = [row for rows in opened for row in self.all_rows(rows.next_epoch(), batch)]
        self.same(known, again, f"next epoch of {name}, {asked}, {shards} shards", wanted)
        return f"{asked} {shards} {batch}"

    def refused_where(self, name, asked):
        """Blocks, and nodes before 2.10, have no rows to select; whatever is read is right."""
        try:
            rows = open_rows(self.full(name), client=self.client, shard=(0, 1), **asked)
            found = self.all_rows(rows)
        except IgniteTFError:
            return "where refused"
        wanted = int(asked["where"].rpartition(" ")[2])
        require(all(v[2] == wanted for _, v in found), f"{name}: rows beside {asked}")
        return "where"

    def split_epoch(self, known, full, asked):
        found = []
        for part in ("train", "test"):
            rows = open_rows(full, client=self.client, shard=(0, 1), split=part, **asked)
            mine = self.all_rows(rows)
            require(len(rows) == len(mine), f"split {part} of {full}: {len(mine)} of {len(rows)}")
            found += mine
        self.same(known, found, f"splits of {full}, {asked}")
        return f"splits {asked}"

    def do_split(self, choice, name, known):
        if not known.settled:
            return None
        seed = choice.randrange(100)
        parts = {"train": 0.7, "test": 0.3}
        by = choice.choice([None, "G"])
        made = make_splits(self.client, self.full(name), parts, seed=seed, by=by, force=True)
        require(sum(row["rows"] for row in made) == len(known.rows), f"splits of {name}: {made}")
        known.split = seed
        return seed

    def do_list_splits(self, choice, name, known):
        if not known.settled or known.split is None:
            return None
        made = list_splits(self.client, self.full(name))
        require(sum(row["rows"] for row in made) == len(known.rows), f"splits of {name}: {made}")
        return len(made)

    def do_resume_epoch(self, choice, name, known):
        """Some batches, a state, and the rest from it, on another number of shards."""
        if not known.settled:
            return None
        asked, size = self.order(choice, known), choice.choice([1, 7, 64])
        shards, later = choice.choice([(1, 1), (1, 2), (2, 1), (3, 2)])
        if asked["order"] != "scan":
            asked["global_batch"] = size * 6
        taken = choice.randrange(1, 6)
        parts = []
        for shard in range(shards):
            rows = open_rows(self.full(name), client=self.client, shard=(shard, shards), **asked)
            part = []
            read = self.api.read(rows, None if "global_batch" in asked else size)
            for count, (some, batches) in enumerate(read, 1):
                part.append(some)
                state = batches.state()
                if count == taken:
                    break
            parts.append((part, state if part else None))
        if len({state and state_place(state) for _, state in parts}) != 1 or parts[0][1] is None:
            return "uneven"
        state = parts[0][1]
        found = [row for part, _ in parts for some in part for row in some]
        if choice.random() < 0.3:
            self.restart()
        for shard in range(later):
            rows = open_rows(self.full(name), client=self.client, shard=(shard, later), **asked)
            found += self.all_rows(rows.resume(state))
        self.same(known, found, f"resumed epoch of {name}, {asked}, {shards} then {later}")
        return f"{asked} {shards} {later}"

    def do_disturbed(self, choice, name, known):
        """An epoch, and a state of it, during which others change the data."""
        if not known.settled:
            return None
        asked, size = self.order(choice, known), choice.choice([1, 7, 64])
        policy = choice.choice(["error", "error", "warn"])
        other = self.connected()
        full, before = self.full(name), dict(known.rows)
        found = []
        with other:
            rows = open_rows(full, client=other, shard=(0, 1), on_change=policy, **asked)
            read = self.api.read(rows, size)
            state = None
            with contextlib.closing(read):
                for some, batches in read:
                    found += some
                    state = batches.state()
                    if len(found) >= choice.choice([1, 20, 200]):
                        break
                change = choice.choice(["insert", "delete", "update", "append", "replace", "drop"])
                self.change(change, choice, name, known)
                after = known.rows or {}
                self.goes_on(read, found, policy, before, after, f"{change} in {asked} of {name}")
            if known.rows and choice.random() < 0.7:
                self.resumes(full, asked, state, found, before, after)
        return f"{change} {asked} {policy}"

    def change(self, change, choice, name, known):
        if change in ("insert", "delete", "update"):
            if change == "delete" and len(known.rows) < 3:
                return
            getattr(self, f"do_{change}")(choice, name, known)
        elif change == "drop":
            self.do_drop(choice, name, known)
        else:
            generation, count = self.new_source(choice)
            options = {**known.options, "if_exists": change}
            self.api.load(
                Records(generation, count), self.full(name), client=self.client, **options
            )
            self.loaded(name, known, generation, count, options)

    def goes_on(self, read, found, policy, before, after, what):
        try:
            for some, _ in read:
                found += some
        except (DataChanged, CacheNotFound):
            # Under "warn" pages that come again still have to be the same.
            return
        keys = dict(found)
        require(len(keys) == len(found), f"{what}: keys are doubled")
        for key, value in found:
            require(value in (before.get(key), after.get(key)), f"{what}: row {key} is {value}")
        if policy == "warn":
            lost = (before.keys() & after.keys()) - keys.keys()
            require(not lost, f"{what}: {len(lost)} rows are lost")
        else:
            require(keys.keys() == before.keys(), f"{what}: {len(keys)} rows of {len(before)}")

    def resumes(self, full, asked, state, found, before, after):
        """A state goes on exactly with what was opened, or is refused."""
        consumed = sum(n for _, n in state["chain"]) if state["chain"] else 0
        first = found[:consumed]
        try:
            rows = open_rows(full, client=self.client, shard=(0, 1), **asked).resume(state)
            rest = self.all_rows(rows)
        except (DataChanged, ConfigError):
            return
        keys = dict(first + rest)
        require(len(keys) == len(first) + len(rest), f"resumed {asked} of {full}: doubled")
        require(
            keys.keys() == before.keys(), f"resumed {asked} of {full}: {len(keys)}, {len(before)}"
        )

    # The rest

    def do_verify(self, choice, name, known):
        if not known.settled:
            return None
        found = verify(self.client, self.full(name))
        require(found.rows == len(known.rows), f"verify of {name}: {found.rows} rows")
        if not known.keys_written and not known.values_written:
            require(found.ok, f"verify of {name}: {found.findings}")
        elif not known.mixed:
            require(not found.ok, f"verify of {name} overlooks what was written")
        return found.ok

    def do_drop(self, choice, name, known):
        full = self.full(name)
        try:
            self.api.drop(self.client, full)
        except CacheNotFound:
            require(known.rows is None, f"{name} was not found")
        self.sets[name].__init__()
        self.nothing_left(name)
        return "dropped"

    def do_clear(self, choice, name, known):
        if not known.settled:
            return None
        full = self.full(name)
        clear_cache(self.client, full)
        try:
            found = self.all_rows(open_rows(full, client=self.client, shard=(0, 1)))
        except (SchemaError, CacheNotFound):
            found = []
        require(not found, f"{name}: {len(found)} rows after clear")
        with contextlib.suppress(SqlError):
            ((count,),) = self.client.sql(f"SELECT COUNT(*) FROM {full}")
            require(count == 0, f"{name}: SQL counts {count} after clear")
        self.api.drop(self.client, full)
        self.sets[name].__init__()
        self.nothing_left(name)
        return "cleared"

    def nothing_left(self, name):
        full = self.full(name)
        own = (full, f"{full}_INDEX", f"{full}__")

        def ours(found):
            return found in own[:2] or found.startswith(own[2])

        left = [each for each in self.client.cache_names() if ours(each)]
        texts = [t for t in catalog(self.client).all() if t.partition(SEPARATOR)[0] == full]
        require(not left and not texts, f"left of {name}: {left}, {texts}")
        for view, column in (("TABLES", "TABLE_NAME"), ("VIEWS", "NAME")):
            with contextlib.suppress(SqlError):  # older versions have no list of views
                found = self.client.sql(f"SELECT {column} FROM SYS.{view}", schema="SYS")
                tables = [each for (each,) in found if ours(each)]
                require(not tables, f"left of {name}: {tables}")

    def restart(self):
        self.client.close()
        self.client = self.connected()

    def do_restart(self, choice, name, known):
        self.restart()
        return "restarted"

    def do_kill_node(self, choice, name, known):
        if self.nodes is None or not known.settled:
            return None
        with self.nodes.one_killed(choice):
            self.do_epoch(choice, name, known)
            if self.can_write(known):
                self.do_delete(choice, name, known)
            self.check(name, known, choice)
        return "killed"


def told(error):
    """Return an error, where it was raised, and in which line of this program it ended up."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == __file__][-1]
    return (
        f"{type(error).__name__}: {error} [{Path(frames[-1].filename).name}:{frames[-1].lineno}, in"
        f" {own.name}:{own.lineno}]"
    )


def state_place(state):
    return repr((state["epoch"], state["chain"]))


def require(condition, what):
    if not condition:
        raise Violation(what)


WEIGHTS = {
    "load": 6,
    "killed_load": 3,
    "resume": 3,
    "copy": 1,
    "insert": 3,
    "update": 2,
    "delete": 3,
    "epoch": 6,
    "split": 2,
    "list_splits": 1,
    "resume_epoch": 5,
    "disturbed": 4,
    "verify": 2,
    "drop": 2,
    "clear": 1,
    "restart": 1,
    "kill_node": 1,
}


def planned(seed, steps=STEPS, operations=WEIGHTS):
    """Return the steps of a run."""
    choice = random.Random(seed)
    names = choice.choices(list(operations), list(operations.values()), k=steps)
    return [("load", choice.getrandbits(32)), *((n, choice.getrandbits(32)) for n in names[1:])]


def run(make, steps):
    """Run steps; return the violation and the steps up to it, or None."""
    under_test = make()
    try:
        for number, (operation, seed) in enumerate(steps):
            try:
                under_test.step(operation, seed)
            except Violation as found:
                return found, steps[: number + 1], under_test.log
    finally:
        under_test.close()
    return None


def shrunk(make, failed, log):
    """Return fewer steps that still break the law, and how."""
    found, steps, log = failed, list(failed[1]), failed[2]
    tries, size = 0, max(1, len(steps) // 2)
    while size and tries < _SHRINKS:
        at = 0
        while at < len(steps) - 1 and tries < _SHRINKS:
            fewer = steps[:at] + steps[min(at + size, len(steps) - 1) :]
            tries += 1
            again = run(make, fewer) if len(fewer) < len(steps) else None
            if again is not None:
                found, steps, log = again, list(again[1]), again[2]
            else:
                at += size
        size //= 2
    return found[0], steps, log


def check(make, seed, steps=STEPS, operations=WEIGHTS, *, shrink=True):
    """Do a run of this seed; raises Violation with the shortest steps that were found."""
    failed = run(make, planned(seed, steps, operations))
    if failed is None:
        return
    error, few, log = shrunk(make, failed, None) if shrink else failed
    done = "\n".join(f"  {operation} {name}: {what}" for operation, name, what in log)
    raise Violation(
        f"seed {seed}: {error}\nafter\n{done}\n  {few[-1][0]}\nsteps = {few!r}"
    ) from error


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("addresses")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--plain", action="store_true", help="a cluster without our templates")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--without", default="", help="operations to leave out, by comma")
    given = parser.parse_args()
    left_out = given.without.split(",")
    operations = {name: weight for name, weight in WEIGHTS.items() if name not in left_out}
    addresses = given.addresses.split(",")
    failed = 0
    with Loaders() as loaders:
        for number in range(given.runs):
            seed = given.seed + number

            make = functools.partial(Run, addresses, loaders, f"M{seed}", templates=not given.plain)
            began = time.monotonic()
            try:
                check(make, seed, given.steps, operations, shrink=not given.no_shrink)
                print(f"{seed}: ok, {time.monotonic() - began:.1f} s", flush=True)
            except Violation as error:
                failed += 1
                print(error, flush=True)
    print(f"{given.runs} runs, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
