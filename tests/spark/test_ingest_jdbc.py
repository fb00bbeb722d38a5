"""Loads from a real PostgreSQL server over JDBC."""

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, InvalidRequest, Lake, Unavailable
from siltstone.errors import SiltstoneError
from tests.support.postgres import PASSWORD, USER, Postgres, postgres_server
from tests.support.refusals import refused as refuses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = """id STRING NOT NULL, n INT, big BIGINT, price DECIMAL(12,3), x DOUBLE, flag BOOLEAN, day DATE, at TIMESTAMP,
    local TIMESTAMP_NTZ, raw BINARY, note STRING"""
TABLE = """
    CREATE TABLE orders AS SELECT 'K' || lpad(i::text, 6, '0') AS id, i AS n, i::bigint * 1000000000 AS big,
        (i / 1000.0)::numeric(12, 3) AS price, i::float8 / 3 AS x, i % 2 = 0 AS flag, date '2026-01-01' + i AS day,
        timestamptz '2026-01-01 00:00:00+02' + i * interval '1 second' AS at,
        timestamp '2026-01-01 00:00:00.123456' AS local, decode('ff00', 'hex') AS raw,
        CASE WHEN i % 3 > 0 THEN 'note ' || i END AS note
    FROM generate_series(1, 1000) AS i;
    GRANT SELECT ON orders TO loader;
    CREATE TABLE spoiled AS SELECT CASE WHEN i % 10 > 0 THEN 'K' || i END AS id, i AS n FROM generate_series(1, 100) AS i;
    GRANT SELECT ON spoiled TO loader;
    CREATE TABLE hidden (id text);
    CREATE TABLE nothing (id text, n int);
    GRANT SELECT ON nothing TO loader;
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as started:
        started.run(TABLE)
        yield started


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.fixture
def orders(lake: Lake) -> Dataset:
    return lake.create("shop.eu.orders", SCHEMA, key="id")


def load(dataset: Dataset, postgres: Postgres, **given: Any) -> Any:  # noqa: ANN401
    return dataset.ingest_jdbc(postgres.url, **({"user": USER, "password": PASSWORD} | given))


def test_a_table_is_loaded_with_every_type(orders: Dataset, postgres: Postgres) -> None:
    report = load(orders, postgres, table="orders")
    assert (report.rows, report.first_load) == (1000, True)
    row = orders.to_arrow().sort_by("id").to_pylist()[6]
    utc = datetime.UTC
    assert row == {
        "id": "K000007",
        "n": 7,
        "big": 7_000_000_000,
        "price": decimal.Decimal("0.007"),
        "x": 7 / 3,
        "flag": False,
        "day": datetime.date(2026, 1, 8),
        "at": datetime.datetime(2025, 12, 31, 22, 0, 7, tzinfo=utc),
        "local": datetime.datetime(2026, 1, 1, 0, 0, 0, 123456),  # noqa: DTZ001
        "raw": b"\xff\x00",
        "note": "note 7",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"partition_column": "n", "partitions": 4},
        {"partition_column": "n", "partitions": 3, "lower": 100, "upper": 200},
        {"partition_column": "day"},
    ],
    ids=["asked bounds", "given bounds", "dates"],
)
def test_a_table_is_read_in_parallel_and_whole(orders: Dataset, postgres: Postgres, given: dict[str, Any]) -> None:
    assert load(orders, postgres, table="orders", **given).rows == 1000
    assert sorted(orders.to_arrow().column("n").to_pylist()) == list(range(1, 1001))


def test_a_query_is_loaded_as_changes_over_what_is_there(orders: Dataset, postgres: Postgres) -> None:
    load(orders, postgres, table="orders")
    query = "SELECT id, n + 1 AS n FROM orders WHERE n <= 10"
    report = load(orders, postgres, query=query, partition_column="n", partitions=2)
    assert (report.rows, report.first_load, report.sequence) == (10, False, 1)
    assert orders.to_arrow().sort_by("id").column("n").to_pylist()[:11] == [*range(2, 12), 11]


def test_bad_rows_refuse_the_load_or_are_quarantined(orders: Dataset, postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"\b10 rows"):
        load(orders, postgres, table="spoiled")
    report = load(orders, postgres, table="spoiled", quarantine=tmp_path / "bad")
    assert (report.rows, report.rows_quarantined) == (90, 10)
    [folder] = (tmp_path / "bad").iterdir()
    assert sorted(pq.read_table(folder / "rows").column("n").to_pylist()) == list(range(10, 101, 10))


@pytest.mark.parametrize(
    ("given", "error", "facts"),
    [
        ({"table": "hidden"}, InvalidRequest, ("hidden", "jdbc:postgresql:", "permission denied")),
        ({"table": "nowhere"}, InvalidRequest, ('"nowhere" does not exist',)),
        ({"query": "SELEC 1"}, InvalidRequest, ("syntax error",)),
        ({"table": "orders", "password": "wrong"}, InvalidRequest, ("password authentication failed",)),
        ({"query": "SELECT id, 1 AS colour FROM orders"}, InvalidRequest, ("'colour'",)),
        (
            {"query": "SELECT id, note AS n FROM orders"},
            InvalidRequest,
            ("'n'",),
        ),
        ({"query": "SELECT n FROM orders"}, InvalidRequest, ("'id'",)),
        ({"table": "nothing", "partition_column": "n"}, InvalidRequest, ()),
        ({"query": f"SELECT '{PASSWORD}'::int AS id"}, InvalidRequest, ("***",)),
        ({"table": "a", "query": "b"}, InvalidRequest, ()),
        ({"table": "a", "partitions": 3}, InvalidRequest, ()),
        ({"table": "a", "partition_column": "n", "lower": 1}, InvalidRequest, ("lower", "upper")),
        ({"table": "a", "partition_column": "n", "partitions": 0}, InvalidRequest, ("1", "1000")),
    ],
)
def test_an_error_about_an_unreadable_source_does_not_show_the_password(
    orders: Dataset, postgres: Postgres, given: dict[str, Any], error: type[SiltstoneError], facts: tuple[str, ...]
) -> None:
    with refuses(error, None, *facts) as refused:
        load(orders, postgres, **given)
    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in str(refused.value.__cause__)
    assert orders.status().sequence == orders.status().rows_in_base == 0


def test_a_server_that_is_not_there_is_unavailable(orders: Dataset) -> None:
    with refuses(Unavailable, None, "jdbc:postgresql://127.0.0.1:9/shop"):
        orders.ingest_jdbc("jdbc:postgresql://127.0.0.1:9/shop", table="a", user=USER, password=PASSWORD)


@pytest.mark.parametrize(
    "url", ["postgresql://host/db", "jdbc:postgresql://host/db?user=a&password=b", "jdbc:postgresql://a:b@host/db"]
)
def test_an_invalid_address_or_one_with_a_password_is_refused(orders: Dataset, url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        orders.ingest_jdbc(url, table="a")
    assert "b" not in str(refused.value).replace("jdbc:", "").split()


def test_a_driver_that_the_session_lacks_is_named(orders: Dataset) -> None:
    with pytest.raises(Unavailable, match=r"spark\.jars\.packages"):
        orders.ingest_jdbc("jdbc:nosuchdb://host/db", table="a")


def test_the_password_is_nowhere_in_the_lake(orders: Dataset, lake: Lake, postgres: Postgres) -> None:
    load(orders, postgres, table="orders")
    assert not [f for f in lake.path.rglob("*") if f.is_file() and PASSWORD.encode() in f.read_bytes()]
