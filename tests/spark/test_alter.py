"""Altered columns on Spark: every way to read, both ways to fold, and other programs that read base."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from siltstone import Conflict, Dataset, Lake
from siltstone.config import Settings
from siltstone.failpoints import arm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "a.b.c"
PLAIN = Settings(durable=False, squash_files=0)
WAYS = {"as Arrow": {}, "by executors": {"arrow_changes_rows": 0}, "by position": {"positions_from_rows": 0}}


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=PLAIN) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake) -> Dataset:
    """Rows from before the change in base and in changes, rows from after it in changes."""
    made = lake.create(NAME, "id BIGINT NOT NULL, n INT, f FLOAT", key="id")
    made.upsert([{"id": i, "n": i, "f": i / 2} for i in range(20)])
    made.compact()
    made.upsert([{"id": i, "n": -i} for i in (3, 4, 30)])
    made.alter(
        add="score DECIMAL(10,2), note STRING, at TIMESTAMP",
        defaults={"score": "1.50", "note": "it's \\ new", "at": "2026-01-01T00:00:00+00:00"},
        widen={"n": "BIGINT", "f": "DOUBLE"},
    )
    made.upsert([{"id": i, "n": 2**40, "note": "after"} for i in (4, 5, 31)])
    made.tombstone([6])
    return made


def by_id(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    return sorted(found.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("way", WAYS)
def test_spark_and_arrow_show_the_same_over_old_and_new_files(
    dataset: Dataset, lake_path: Path, spark: "SparkSession", way: str
) -> None:
    expected = by_id(dataset.to_arrow())
    assert {row["note"] for row in expected} == {"it's \\ new", "after"}
    reader = Lake.open(lake_path, spark=spark, settings=replace(PLAIN, **WAYS[way])).dataset(NAME)  # type: ignore[arg-type]
    assert by_id(reader.read().toArrow()) == expected
    assert by_id(reader.read(raw=True).toArrow()) == by_id(dataset.to_arrow(raw=True))
    assert reader.read().where("note = 'after'").count() == 3
    assert reader.read().where("score = 1.5").count() == len(expected) - 3


@pytest.mark.parametrize("way", ["as Arrow", "by executors"])
def test_a_fold_writes_old_rows_in_the_new_columns_and_other_programs_read_them(
    dataset: Dataset, lake_path: Path, spark: "SparkSession", way: str
) -> None:
    expected = by_id(dataset.to_arrow())
    folder = Lake.open(lake_path, spark=spark, settings=replace(PLAIN, **WAYS[way])).dataset(NAME)  # type: ignore[arg-type]
    report = folder.compact()
    assert (report.final_rows, report.batches_folded) == (len(expected), 3)
    assert by_id(dataset.to_arrow()) == by_id(dataset.read().toArrow()) == expected
    path = str(dataset.path / "base")
    assert by_id(DeltaTable(path).to_pyarrow_table()) == expected
    assert by_id(spark.read.format("delta").load(path).toArrow()) == expected


def test_other_programs_read_files_that_are_older_than_the_columns(lake: Lake, spark: "SparkSession") -> None:
    """Other programs see no defaults, as documented; they must see wider types without an error."""
    made = lake.create("a.b.old", "id BIGINT NOT NULL, n INT, f FLOAT", key="id")
    made.upsert([{"id": 1, "n": 5, "f": 0.5}])
    made.compact()
    made.alter(widen={"n": "BIGINT", "f": "DOUBLE"}, add="x STRING", defaults={"x": "shown by us"})
    path = str(made.path / "base")
    expected = [{"id": 1, "n": 5, "f": 0.5, "x": None}]
    assert by_id(DeltaTable(path).to_pyarrow_table()) == expected
    assert by_id(spark.read.format("delta").load(path).toArrow()) == expected
    assert by_id(made.read().toArrow()) == [{"id": 1, "n": 5, "f": 0.5, "x": "shown by us"}]


def test_a_fold_that_was_planned_before_an_alteration_is_refused_and_planned_again(
    dataset: Dataset, lake_path: Path, spark: "SparkSession"
) -> None:
    other = Lake.open(lake_path, spark=spark, settings=PLAIN).dataset(NAME)

    def alter_now(_: str) -> None:
        other.alter(add="later INT", defaults={"later": 1})

    with arm("fold.after_write", alter_now), pytest.raises(Conflict):
        dataset.compact()
    expected = by_id(dataset.to_arrow())
    dataset.compact()
    assert by_id(dataset.read().toArrow()) == expected
    assert {row["later"] for row in expected} == {1}


def test_a_fold_finishes_an_alteration_that_crashed(dataset: Dataset) -> None:
    with arm("alter.after_changes", "raise"), pytest.raises(OSError, match=r"alter\.after_changes"):
        dataset.alter(add="x INT", defaults={"x": 5})
    dataset.compact()
    assert {row["x"] for row in by_id(dataset.read().toArrow())} == {5}


def test_loads_take_the_new_columns(dataset: Dataset, spark: "SparkSession", tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    spark.sql("SELECT 40L AS id, 7 AS n, 'loaded' AS note").write.parquet(source)
    dataset.ingest(source)
    assert by_id(dataset.to_arrow())[-1] | {"at": None} == {
        "id": 40,
        "n": 7,
        "f": None,
        "score": None,
        "note": "loaded",
        "at": None,
    }
