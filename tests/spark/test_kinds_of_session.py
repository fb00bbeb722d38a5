"""The core has the same results on a classic session and on a Connect one."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from siltstone.spark.connect_server import ConnectServer
from tests.support.children import Child
from tests.support.core import HIDDEN, WAYS, expected_rows, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
CORE = ("tests/spark/test_merged_view.py", "tests/spark/test_fold.py", "tests/spark/test_ingest.py", "tests/property")
WHOLE_RUN_SECONDS = 3600
FILES_ADDED = {"changes as Arrow": 2, "changes read by executors": 1, "by position": 2}
"""An in-place fold writes new keys to a separate file; a shuffle writes one file."""

pytestmark = pytest.mark.spark
every_way = pytest.mark.parametrize(
    "way", [next(iter(WAYS)), *[pytest.param(way, marks=pytest.mark.deep) for way in list(WAYS)[1:]]]
)


def check(seen: dict[str, Any], way: str) -> None:
    """Compare both kinds of session with the same figures."""
    rows, raw = expected_rows(), expected_rows(raw=True)
    assert len(raw) - len(rows) == len(HIDDEN)
    load = seen["load"]
    assert (load["rows"], load["files"], load["sequence"], load["first_load"]) == (200, 1, 0, True)
    assert [seen[step] for step in ("upsert", "upsert of a frame", "tombstone")] == [1, 2, 3]
    for moment in ("before the fold", "after the fold", "after the purge"):
        visible = raw if moment == "before the fold" else rows
        assert seen[moment] == {
            "rows": rows,
            "raw": visible,
            "counts": [len(rows), len(visible)],
            "without Spark": rows,
        }
    fold = seen["fold"]
    figures = ("base_rows", "change_rows", "batches_folded", "upserts_applied", "tombstones_applied", "final_rows")
    assert [fold[figure] for figure in figures] == [200, 25, 3, 21, 3, len(rows)], fold
    assert (fold["rows_dropped_by_tombstones"], fold["files_removed"], fold["files_added"]) == (2, 1, FILES_ADDED[way])
    assert (seen["purge"]["purged"], seen["purge"]["final_rows"]) == (True, len(rows))


@every_way
@pytest.mark.usefixtures("spark")
def test_the_core_on_a_classic_session(tmp_path: Path, way: str):
    check(walk(str(tmp_path), way), way)


@every_way
def test_the_core_on_a_connect_session(connect_server: ConnectServer, tmp_path: Path, way: str):
    child = Child("tests.support.core:walk", {"path": str(tmp_path), "way": way}, remote=connect_server.address)
    check(child.value(), way)


def test_a_query_on_a_connect_session_of_another_zone_means_the_same(connect_server: ConnectServer, tmp_path: Path):
    child = Child("tests.support.core:hour_in_new_york", {"path": str(tmp_path)}, remote=connect_server.address)
    assert child.value() == {"hot": 1, "spark": 1, "zone": "America/New_York"}


def test_a_lake_takes_a_session_that_it_is_given(spark: "SparkSession", lake_path: Path):
    from siltstone import Lake

    with Lake.open(lake_path, spark=spark) as lake:
        assert lake.spark() is spark


@pytest.mark.deep
def test_every_test_of_the_core_passes_on_a_connect_session():
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not deep", "--spark-session", "connect", *CORE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WHOLE_RUN_SECONDS)
    assert done.returncode == 0, done.stdout[-5000:]
