"""The dialect of SQLAlchemy: what is written comes back, reflected tables are those made."""

import datetime
import decimal
import os
import random
import threading
import uuid

import pytest
import sqlalchemy as sa

import ignitetf.sqlalchemy as ignite
from ignitetf.sqlalchemy.grains import TIME_GRAINS

pytestmark = pytest.mark.node
NAME = f"sa{os.getpid()}"


@pytest.fixture(scope="module")
def engine(address):
    found = sa.create_engine(f"ignite://{address}/PUBLIC?timeout_s=60")
    yield found
    found.dispose()


@pytest.fixture
def metadata(engine):
    found = sa.MetaData()
    yield found
    found.drop_all(engine)


def typed(metadata):
    return sa.Table(
        f"{NAME}_typed",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.String(9), primary_key=True),
        sa.Column("name", sa.String(30), nullable=False, server_default="it's"),
        sa.Column("price", sa.Numeric(12, 3), server_default=sa.text("1.5")),
        sa.Column("real", sa.Float),
        sa.Column("tiny", ignite.TINYINT),
        sa.Column("flag", sa.Boolean),
        sa.Column("uid", ignite.Uuid),
        sa.Column("told", ignite.Uuid(as_uuid=False)),
        sa.Column("day", sa.Date),
        sa.Column("clock", sa.Time),
        sa.Column("moment", sa.DateTime),
        sa.Column("aware", sa.DateTime(timezone=True)),
        sa.Column("data", sa.LargeBinary),
        sa.Column("Mixed Case", sa.JSON),
        sa.Index(f"{NAME}_index", "name", sa.text("price DESC"), ignite_inline_size=20),
        ignite_backups=1,
        ignite_template="partitioned",
        ignite_affinity_key="id",
    )


def record(number):
    moment = datetime.datetime(1969, 12, 31, 23, 59, 59, 123456) + datetime.timedelta(number)
    return {
        "id": number,
        "part": f"p{number}",
        "name": f"näme 𝄞 '\"{number}",
        "price": decimal.Decimal(number).scaleb(-3),
        "real": number / 8,
        "tiny": number % 100 - 50,
        "flag": number % 2 == 0,
        "uid": uuid.UUID(int=number),
        "told": str(uuid.UUID(int=number + 1)),
        "day": moment.date(),
        "clock": datetime.time(1, 2, 3, 4000),
        "moment": moment,
        "aware": moment.replace(tzinfo=datetime.UTC),
        "data": bytes([0, number % 256]),
        "Mixed Case": {"a": [number, None, "x"]},
    }


def test_rows_of_every_type_come_back(engine, metadata):
    table = typed(metadata)
    metadata.create_all(engine)
    rows = [record(number) for number in range(30)]
    nothing = {"id": 99, "part": "q", **dict.fromkeys(list(rows[0])[4:])}
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
        connection.execute(table.insert(), nothing)
        found = connection.execute(sa.select(table).order_by(table.c.id)).mappings().all()
        page = sa.select(table.c.id).order_by(table.c.id).limit(3).offset(4)
        assert connection.scalars(page).all() == [4, 5, 6]
        with pytest.raises(sa.exc.IntegrityError, match="already in cache"):
            connection.execute(table.insert(), rows[0])
    assert [dict(row) for row in found[:-1]] == rows
    assert found[-1] == {**nothing, "name": "it's", "price": decimal.Decimal("1.5")}


def test_a_reflected_table_is_the_one_that_was_made(engine, metadata):
    table = typed(metadata)
    metadata.create_all(engine)
    again = sa.Table(table.name, sa.MetaData(), autoload_with=engine)
    assert again.columns.keys() == table.columns.keys()
    assert [c.name for c in again.primary_key] == ["id", "part"]
    types = {column.name: str(column.type) for column in again.columns}
    compiled = {c.name: c.type.compile(dialect=engine.dialect) for c in table.columns}
    assert {name: kind.replace("INTEGER", "INT") for name, kind in types.items()} == compiled
    assert [c.name for c in again.columns if not c.nullable] == ["id", "part", "name"]
    assert str(again.c.name.server_default.arg) == "'it''s'"
    assert str(again.c.price.server_default.arg) == "1.5"
    (index,) = again.indexes
    assert (index.name, [c.name for c in index.columns]) == (f"{NAME}_index", ["name", "price"])
    options = sa.inspect(engine).get_table_options(table.name)
    assert options["ignite_backups"] == 1
    assert options["ignite_affinity_key"] == "id"


def test_tables_without_a_key_or_of_keys_alone_work_like_others(engine, metadata):
    bare = sa.Table(f"{NAME}_bare", metadata, sa.Column("a", sa.Integer), sa.Column("b", sa.String))
    pairs = sa.Table(
        f"{NAME}_pairs",
        metadata,
        sa.Column("a", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("b", sa.Integer, primary_key=True, autoincrement=False),
    )
    metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(bare.insert(), [{"a": n, "b": "(x')"} for n in range(3)])
        several = [{"a": 3, "b": "y"}, {"a": 4, "b": sa.func.concat("(", ")")}]
        connection.execute(bare.insert().values(several))
        copied = sa.select(bare.c.a + 10, bare.c.b)
        connection.execute(bare.insert().from_select(["a", "b"], copied))
        connection.execute(pairs.insert(), [{"a": 1, "b": n} for n in range(3)])
        assert connection.scalar(sa.select(sa.func.count()).select_from(pairs)) == 3
        values = connection.scalars(sa.select(bare.c.a).order_by(bare.c.a)).all()
        assert values == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    for table in (bare, pairs):
        assert (
            sa.Table(table.name, sa.MetaData(), autoload_with=engine).columns.keys()
            == table.columns.keys()
        )


def test_what_ignite_lacks_is_said(engine, metadata):
    one = sa.Table(
        f"{NAME}_one",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("a", sa.Integer, sa.CheckConstraint("a > 0"), unique=True),
    )
    sa.Table(
        f"{NAME}_two",
        metadata,
        sa.Column("id", sa.Integer, sa.ForeignKey(one.c.id), primary_key=True),
        sa.Column("b", sa.Integer),
        sa.Index(f"{NAME}_unique", "b", unique=True),
    )
    with pytest.warns(sa.exc.SAWarning) as told:
        metadata.create_all(engine)
    said = " ".join(str(warning.message) for warning in told)
    assert all(word in said for word in ("foreign keys", "unique c", "checks", "unique indexes"))
    no_number = pytest.raises(sa.exc.CompileError, match=r"no autoincrement.*hint: .*uuid4")
    with engine.connect() as connection, no_number:
        connection.execute(one.insert(), {"a": 1})
    no_savepoint = pytest.raises(sa.exc.InvalidRequestError, match="savepoints")
    with engine.begin() as connection, no_savepoint:
        connection.begin_nested()
    with pytest.raises(sa.exc.ArgumentError, match="do you mean timeout_s"):
        sa.create_engine("ignite://127.0.0.1:1/PUBLIC?timeouts=3").connect()


def test_merge_patterns_and_hostile_values(engine, metadata):
    table = sa.Table(
        f"{NAME}_texts",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("text", sa.String),
    )
    metadata.create_all(engine)
    texts = [
        "a/b%",
        "a\\b",
        "a_b",
        "axb",
        f"'; DROP TABLE {table.name}; --",
        "? :x %s {0} \x01",
        "",
    ]
    with engine.connect() as connection:
        connection.execute(table.insert(), [{"id": i, "text": t} for i, t in enumerate(texts)])
        connection.execute(ignite.merge(table), [{"id": 3, "text": "ayb"}, {"id": 9, "text": "n"}])
        texts[3] = "ayb"
        for i, text in enumerate(texts):
            assert connection.scalars(sa.select(table.c.id).where(table.c.text == text)).all() == [
                i
            ]
        for part in ("/", "%", "\\", "_", "a", "b%", "'", "//", "a\\"):
            for escape in (None, "\\", "!"):
                where = table.c.text.contains(part, autoescape=True, escape=escape)
                found = connection.scalars(sa.select(table.c.id).where(where)).all()
                assert sorted(found) == [i for i, text in enumerate(texts) if part in text]
        where = table.c.text.regexp_match("A[xy]B", flags="i")
        assert connection.scalars(sa.select(table.c.id).where(where)).all() == [3]


def test_offsets_and_deletions_reach_the_rows_they_name(engine, metadata):
    """Ignite ignores a lone OFFSET within a query, and a key of another width in DELETE."""
    for kind in (ignite.TINYINT, sa.Integer, sa.BigInteger):
        table = sa.Table(
            f"{NAME}_{kind.__name__}",
            metadata,
            sa.Column("id", kind, primary_key=True, autoincrement=False),
            sa.Column("a", sa.Integer),
        )
        metadata.create_all(engine)
        with engine.connect() as connection:
            connection.execute(table.insert(), [{"id": n, "a": n} for n in range(9)])
            inner = sa.select(table.c.id).order_by(table.c.id).offset(6).subquery()
            assert sorted(connection.scalars(sa.select(inner.c.id))) == [6, 7, 8]
            for where in (table.c.id == 2, table.c.id.in_([3]), table.c.id == sa.literal(4)):
                assert connection.execute(table.delete().where(where)).rowcount == 1
            connection.execute(table.update().where(table.c.id == 5), {"a": 50})
            assert connection.scalar(sa.select(sa.func.sum(table.c.a))) == 36 - 2 - 3 - 4 + 45


def test_threads_share_an_engine(engine, metadata):
    table = sa.Table(
        f"{NAME}_threads",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("of", sa.Integer),
    )
    metadata.create_all(engine)
    failed = []

    def work(number):
        try:
            for turn in range(10):
                with engine.begin() as connection:
                    connection.execute(table.insert(), {"id": number * 10 + turn, "of": number})
                    mine = sa.select(sa.func.count()).where(table.c.of == number)
                    assert connection.scalar(mine) == turn + 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 120


def test_views_and_data_sets_are_reflected(engine, client, typed_rows):
    found = sa.inspect(engine)
    name = typed_rows.lower()
    assert name in found.get_view_names()
    assert found.has_table(name)
    columns = found.get_columns(name)
    described = client.sql(f"SELECT * FROM {typed_rows} LIMIT 1").columns
    assert [c["name"] for c in columns] == [c.lower() if c.isupper() else c for c in described]
    assert "select" in found.get_view_definition(name).lower()
    with pytest.raises(sa.exc.NoSuchTableError):
        found.get_columns("no_such_table")


def test_time_grains_give_the_beginning(engine, metadata):
    table = sa.Table(
        f"{NAME}_times",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ts", sa.TIMESTAMP),
    )
    chance = random.Random(5)
    times = [
        datetime.datetime(1960, 2, 29)
        + datetime.timedelta(days=chance.randrange(40_000), microseconds=chance.randrange(10**11))
        for _ in range(50)
    ]
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"id": i, "ts": ts} for i, ts in enumerate(times)])
        for grain, sql in TIME_GRAINS.items():
            statement = f"SELECT {sql.format(col='ts')} FROM {table.name} ORDER BY id"
            found = [row[0] for row in connection.execute(sa.text(statement.replace(":", r"\:")))]
            assert found == [beginning(grain, ts) for ts in times], grain


def beginning(grain, ts):
    day = ts.replace(hour=0, minute=0, second=0, microsecond=0)
    return {
        None: ts,
        "PT1S": ts.replace(microsecond=0),
        "PT1M": ts.replace(second=0, microsecond=0),
        "PT1H": ts.replace(minute=0, second=0, microsecond=0),
        "P1D": day,
        "P1W": day - datetime.timedelta(day.weekday()),
        "P1M": day.replace(day=1),
        "P3M": day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1),
        "P1Y": day.replace(month=1, day=1),
    }[grain]


def test_alembic_migrates_up_and_down(engine, metadata):
    pytest.importorskip("alembic", reason="Alembic is not installed")
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    version = f"{NAME}_version"
    with engine.connect() as connection:
        options = {"version_table": version}
        context = MigrationContext.configure(connection, opts=options)
        operations = Operations(context)
        try:
            for before, after in (((), "one"), ("one", "two")):
                context._ensure_version_table()
                if before == ():
                    connection.execute(context._version.insert().values(version_num=after))
                else:
                    changed = context._version.update().values(version_num=after)
                    connection.execute(changed.where(context._version.c.version_num == before))
                assert context.get_current_heads() == (after,)
            key = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
            operations.create_table(f"{NAME}_migrated", key)
            operations.add_column(f"{NAME}_migrated", sa.Column("more", sa.String(9)))
            columns = sa.inspect(connection).get_columns(f"{NAME}_migrated")
            assert [column["name"] for column in columns] == ["id", "more"]
            operations.drop_column(f"{NAME}_migrated", "more")
        finally:
            for table in (f"{NAME}_migrated", version):
                connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))


def test_errors_keep_the_hint(engine, metadata):
    table = sa.Table("SA_HINTED", metadata, sa.Column("ID", sa.Integer, primary_key=True))
    sa.Table("SA_HINTED_2", metadata, sa.Column("ID", sa.Integer, primary_key=True))
    metadata.create_all(engine)
    with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.execute(sa.text(f"SELECT 1 FROM {table.name}X"))
    assert f"did you mean {table.name}" in str(raised.value)
