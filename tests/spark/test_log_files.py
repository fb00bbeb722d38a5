"""Files of a log, by every writer: bloom filters on subjects, sorted rows, and our own columns."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.compaction.operations import roll_up
from siltstone.compaction.operations.rewrite import tier_of
from siltstone.spark.arrow_tasks import WorkersUnfit
from tests.support.clicks import as_counter, clicks, create
from tests.support.internals import store_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "web.eu.clicks"
FOUND_BY = {"visitor", "account", "_batch_id"}


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark, settings=Settings(durable=False, tiers="daily.min_files=2")) as opened:
        yield opened


@pytest.fixture
def log(lake: Lake) -> Dataset:
    found = create(lake)
    for _ in range(2):
        found.append(clicks(16))
        found.compact()
    return found


def paths(log: Dataset) -> list[Path]:
    return [store_of(log).base.path / file.path for file in store_of(log).snapshot().base.files]


def has_bloom_filters(path: Path) -> set[str]:
    """Return the columns with a bloom filter or a dictionary. Spark omits the filter if a dictionary has all values."""
    query = """
        SELECT path_in_schema FROM parquet_metadata(?)
        WHERE bloom_filter_offset IS NOT NULL OR encodings LIKE '%DICTIONARY%'
    """
    with duckdb.connect() as connection:
        return {name for (name,) in connection.execute(query, [str(path)]).fetchall()}


def roll(lake: Lake) -> None:
    assert [one.error for one in lake.run_cycle([NAME], only=["daily"], force=True) if one.error] == []


def unfit(*_: object, **__: object) -> list[str]:
    raise WorkersUnfit("no Python there")


def no_way(*_: object, **__: object) -> None:
    return None


@pytest.mark.parametrize("instead", [None, unfit, no_way])
def test_a_rolled_up_file_is_the_same_by_arrow_and_by_a_shuffle(
    lake: Lake, log: Dataset, instead: Callable[..., list[str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instead is not None:
        monkeypatch.setattr(roll_up, "merge_small_files", instead)
    roll(lake)
    found = store_of(log).snapshot().base.files
    assert {tier_of(file.path) for file in found} == {"daily"}
    by_arrow = {"part" not in Path(file.path).name for file in found}
    assert by_arrow == {instead is None}
    check(log)


def test_files_of_folds_and_clusterings(log: Dataset) -> None:
    check(log)
    log.cluster()
    for path in paths(log):
        assert has_bloom_filters(path) >= FOUND_BY
    assert as_counter(log.to_arrow()) == as_counter(clicks(16) * 2)


def check(log: Dataset) -> None:
    for path in paths(log):
        assert has_bloom_filters(path) >= FOUND_BY
        rows = pq.ParquetFile(path).read()
        assert rows.column_names == [*log.schema.names, "_written_at", "_batch_id"]
        assert not rows.column("_written_at").null_count
        assert not rows.column("_batch_id").null_count
        listed = rows.select(["visitor", "at"]).to_pylist()
        assert listed == sorted(listed, key=lambda row: (row["visitor"], row["at"]))
    assert as_counter(log.to_arrow()) == as_counter(clicks(16) * 2)
