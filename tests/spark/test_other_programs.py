"""Spark writes to `base` outside our commit path: deletion vectors, renamed columns, deletes.

All are refused and undone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone.config import Settings
from siltstone.errors import Corruption, Reason
from siltstone.lake import Lake
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATEMENTS = {
    "a deletion vector": (
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "DELETE FROM {} WHERE id < 3",
    ),
    "a renamed column": (
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {} RENAME COLUMN name TO renamed",
    ),
    "a delete": ("DELETE FROM {} WHERE id < 3",),
    "an insert": ("INSERT INTO {} VALUES (1, 'twice')",),
}


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(durable=False)) as opened:
        yield opened


@pytest.mark.parametrize(
    "what",
    [
        "a deletion vector",
        "a renamed column",
        pytest.param("a delete", marks=pytest.mark.deep),
        pytest.param("an insert", marks=pytest.mark.deep),
    ],
)
def test_commits_of_spark_to_base_are_refused_and_undone(lake: Lake, spark: "SparkSession", what: str) -> None:
    people = lake.create(f"a.b.{what.replace(' ', '_')}", "id BIGINT NOT NULL, name STRING", key="id")
    people.upsert([{"id": number, "name": f"n{number}"} for number in range(10)])
    people.compact()
    base = people.path / "base"
    for statement in STATEMENTS[what]:
        spark.sql(statement.format(f"delta.`{base}`"))
    for use in (
        people.to_arrow,
        people.read,
        lambda: people.get([1]),
        lambda: lake.sql(f"SELECT count(*) FROM {people.name}"),
        people.compact,
        lambda: people.upsert([{"id": 1, "name": "x"}]),
    ):
        with refused(Corruption, Reason.FOREIGN_COMMIT):
            use()
    [damage] = [one for one in lake.damages() if one.subject == str(people.name)]
    lake.repair(damage)
    truth = {(number, f"n{number}") for number in range(10)}
    assert {(row["id"], row["name"]) for row in people.read().toArrow().to_pylist()} == truth
    assert {(row["id"], row["name"]) for row in _plainly(spark, base)} == truth
    people.upsert([{"id": 1, "name": "x"}])
    people.compact()
    assert {(row["id"], row["name"]) for row in _plainly(spark, base)} == truth - {(1, "n1")} | {(1, "x")}


def _plainly(spark: "SparkSession", base: Path) -> list[dict[str, object]]:
    """Read base as any Delta reader does."""
    found: list[dict[str, object]] = spark.read.format("delta").load(str(base)).toArrow().to_pylist()
    return found
