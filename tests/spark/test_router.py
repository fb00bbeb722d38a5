"""The router with both engines behind it: the same types from either, the queries of Spark, and fills in the background."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from siltstone import Lake
from siltstone.config import Settings
from siltstone.errors import InvalidRequest
from tests.differential.data import rows
from tests.differential.engines import differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "lab.d.t"
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession") -> Iterator[Lake]:
    """A lake with rows of every type, some of them folded and some not."""
    path = tmp_path_factory.mktemp("router") / "lake"
    with Lake.open(path, settings=Settings(durable=False, hot_at_once_rows=0), spark=spark) as opened:
        given = rows()
        dataset = opened.create(NAME, given.schema, key="id")
        dataset.upsert(given.slice(0, 40))
        dataset.compact()
        dataset.upsert(given.slice(30))
        dataset.tombstone([3, 5])
        yield opened


def both(lake: Lake, text: str) -> list[str]:
    hot, on_spark = lake.sql(text, engine="hot"), lake.sql(text, engine="spark")
    assert (hot.engine, on_spark.engine) == ("hot", "spark")
    assert hot.to_arrow().schema.equals(on_spark.to_arrow().schema)
    return differences(hot.to_arrow(), on_spark.to_arrow(), ordered=False)


def test_every_type_comes_from_both_engines_alike(lake: Lake) -> None:
    assert both(lake, f"SELECT * FROM {NAME}") == []
    assert (
        both(
            lake, f"SELECT k, sum(m) AS s, avg(p) AS a, max(u) AS u, min(v) AS v, count(*) AS c FROM {NAME} GROUP BY k"
        )
        == []
    )


def test_a_dataset_that_is_not_resident_is_answered_by_spark_and_filled_afterwards(lake: Lake) -> None:
    lake.hot.evict(NAME)
    text = f"SELECT count(*) AS missed FROM {NAME}"
    first = lake.sql(text)
    assert (first.engine, first.rows) == ("spark", [(62,)])
    assert first.reason
    ends = time.monotonic() + WAIT_SECONDS
    while not lake.hot.decide(NAME).resident and time.monotonic() < ends:
        time.sleep(0.05)
    assert lake.sql(f"SELECT count(*) AS filled FROM {NAME}").engine == "hot"


def test_spark_answers_what_the_hot_engine_gives_up_and_the_answer_is_cached(lake: Lake) -> None:
    lake.hot.fill(NAME)
    text = f"SELECT id, lower(z) AS z FROM {NAME} ORDER BY id"
    first = lake.sql(text)
    assert (first.engine, first.cached) == ("spark", False)
    assert "ASCII" in first.reason
    assert lake.sql(text).cached
    with pytest.raises(InvalidRequest, match="ASCII"):
        lake.sql(text, engine="hot")


def test_an_error_in_the_rows_is_reported_by_spark(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match=r"(?i)division by zero"):
        lake.sql(f"SELECT id / n AS x FROM {NAME}")


def test_the_plan_of_spark_shows_no_path(lake: Lake) -> None:
    found = lake.explain_sql(f"SELECT stddev(e) AS s FROM {NAME}")
    assert found.engine == "spark"
    assert "STDDEV" in found.reason
    assert "Physical Plan" in found.plan
    assert str(lake.path) not in found.plan
    assert str(Path(lake.path).parent) not in found.plan
