"""What files of a log hold, whoever wrote them: bloom filters on subjects, sorted rows, and our own columns."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.compaction import press, roll_up
from siltstone.compaction.rewrite import tier_of
from siltstone.dataset.tasks import WorkersUnfit
from siltstone.model.files import DataFile
from tests.support.clicks import as_counter, clicks, create

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
    return [log._store.base.path / file.path for file in log._store.snapshot().base.files]


def has_bloom_filters(path: Path) -> set[str]:
    asked = "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL"
    with duckdb.connect() as connection:
        return {name for (name,) in connection.execute(asked, [str(path)]).fetchall()}


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
        monkeypatch.setattr(roll_up, "pressed", instead)
    roll(lake)
    found = log._store.snapshot().base.files
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


def test_ranges_of_several_files_do_not_overlap_and_nulls_are_in_the_lowest(
    lake_path: Path, spark: "SparkSession"
) -> None:
    settings = Settings(durable=False, tiers="hourly.min_files=2; hourly.min_age_seconds=0; hourly.target_bytes=1MB")
    with Lake.open(lake_path, spark=spark, settings=settings) as lake:
        log = lake.create("web.eu.seconds", "at TIMESTAMP, n BIGINT", time="at", sort_by=["n", "at"])
        for part in range(4):
            rows = [{"at": clicks(1)[0]["at"], "n": part * 100 + n - 20} for n in range(130)]
            log.append([*rows, {"at": clicks(1)[0]["at"], "n": None}])
            log.compact()
        before = sorted(str(row["n"]) for row in log.to_arrow().to_pylist())
        (job,) = lake.plan(["web.eu.seconds"], only=["hourly"], force=True).jobs
        names = press.pressed(spark, log._store, taken(log), "data/try/0", files=2)
        assert names is not None
        found = [
            pq.ParquetFile(log._store.base.path / "data/try/0" / name).read().column("n").to_pylist() for name in names
        ]
        assert sorted(str(n) for part in found for n in part) == before
        low, high = sorted(found, key=lambda part: None not in part)
        assert None not in high
        assert max(n for n in low if n is not None) < min(high)
        assert job.files_after == 1


def taken(log: Dataset) -> tuple[DataFile, ...]:
    return tuple(log._store.snapshot().base.files)
