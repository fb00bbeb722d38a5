"""Flipped bits in data files, read by Spark: the right rows, or an error that names the file."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Lake, Settings
from siltstone.errors import Corruption
from siltstone.spark_tasks.parquet_checksums import MAGIC
from tests.support.flips import flipped, footer_at, is_named_or_harmless, live_files
from tests.support.people import NAME, create, key, person, write_people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(durable=False, arrow_changes_rows=0)
"""Spark's tasks read the change files, too."""


def filled(lake: Lake, tmp_path: Path) -> None:
    people = create(lake)
    people.ingest(write_people(tmp_path / "in.parquet", 300))
    people.upsert([person(number, city="changed") for number in range(0, 300, 7)])


def rows(lake: Lake) -> list[tuple[object, ...]]:
    return lake.sql(f"SELECT id, n, city FROM {NAME} ORDER BY id", engine="spark").rows


@pytest.mark.parametrize("flips", [4, pytest.param(40, marks=pytest.mark.deep)])
def test_spark_names_a_flipped_bit_or_reads_the_right_rows(
    lake_path: Path, tmp_path: Path, spark: "SparkSession", flips: int
):
    with Lake.open(lake_path, spark=spark, settings=SETTINGS) as lake:
        filled(lake, tmp_path)
        live = live_files(lake.dataset(NAME))
        truth = rows(lake)
    named = 0
    for damaged in live:
        for _ in flipped(damaged, step=damaged.stat().st_size // flips):
            with Lake.open(lake_path, spark=spark, settings=SETTINGS) as lake:
                named += is_named_or_harmless(lambda opened=lake: rows(opened), truth, damaged)  # type: ignore[misc]
    assert named >= len(live)


def test_files_that_loads_and_folds_write_have_checksums(lake_path: Path, tmp_path: Path, spark: "SparkSession"):
    with Lake.open(lake_path, spark=spark, settings=SETTINGS) as lake:
        filled(lake, tmp_path)
        people = lake.dataset(NAME)
        people.upsert(
            spark.createDataFrame([(key(900), 1, "by Spark", None)], "id string, n long, city string, at timestamp")
        )
        written = live_files(people)
        people.compact()
        written += live_files(people)
        assert len({path.parent for path in written}) >= 4
        for path in written:
            content = path.read_bytes() if path.exists() else b""
            assert not content or content[: footer_at(content)][-20:].startswith(MAGIC)


def test_a_fold_refuses_a_flipped_bit_and_names_the_file(lake_path: Path, tmp_path: Path, spark: "SparkSession"):
    with Lake.open(lake_path, spark=spark, settings=SETTINGS) as lake:
        filled(lake, tmp_path)
        damaged = live_files(lake.dataset(NAME))[0]
        for _ in flipped(damaged, start=200, step=1 << 40):
            with pytest.raises(Corruption, match=damaged.name):
                lake.dataset(NAME).compact()
        lake.dataset(NAME).compact()
        assert len(rows(lake)) == 300
