"""Random batches of every key type: all readers, both ways to fold and a plain dict give the same rows."""

import datetime
import random
import shutil
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from siltstone import Lake
from siltstone.config import Settings
from siltstone.dataset.dataset import Dataset
from tests.support.internals import store_of
from tests.support.kinds import KINDS, Kind, Row, plain_rows, random_values, to_table
from tests.support.model import Model

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

NAME = "property.test.rows"
OFTEN_TRIED = {"string", "date", "timestamp_ntz", "decimal", "composite"}
"""The kinds of keys whose lookups differ most; the deep run tests all kinds."""
SEEDS = st.integers(min_value=0, max_value=2**32)
SMALL = Settings(durable=False)
DISTRIBUTED = Settings(durable=False, arrow_changes_rows=0)
BY_POSITION = Settings(durable=False, positions_from_rows=0)

once = hypothesis_settings(
    max_examples=1,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
often = hypothesis_settings(once, max_examples=20)


def write_random(dataset: Dataset, model: Model, rng: random.Random, *, batches: int) -> None:
    """Write batches of upserts and tombstones with repeated keys, to the dataset and to the oracle."""
    kind = model.kind
    for _ in range(batches):
        keys = rng.choices(kind.keys, k=rng.randrange(1, 2 * len(kind.keys)))
        if rng.random() < 0.3:
            dataset.tombstone([dict(zip(kind.key, key, strict=True)) for key in keys], reason="random")
            model.tombstone(keys, "random")
        else:
            rows = [kind.row(key, random_values(rng)) for key in keys]
            dataset.upsert(to_table(kind, rows))
            model.upsert(rows)


def arrow_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return plain_rows(table.to_pylist())


def expected(rows: dict[Any, Row]) -> list[tuple[Any, ...]]:
    return plain_rows(list(rows.values()))


def folded_copy(path: Path, copy: Path, settings: Settings, model: Model, spark: "SparkSession") -> Dataset:
    """Fold a copy of the lake and check the report; the model is unchanged."""
    shutil.copytree(path, copy)
    dataset = Lake.open(copy, settings=settings, spark=spark).dataset(NAME)
    report = dataset.compact().to_dict()
    counts = model.report()
    assert {name: report[name] for name in counts} == counts
    return dataset


def check_readers(seed: int, kind: Kind, folder: Path, spark: "SparkSession", *, thorough: bool = False) -> None:
    rng = random.Random(seed)
    path = folder / "lake"
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake.open(path, settings=SMALL, spark=spark)
    dataset = lake.create(NAME, kind.schema, key=kind.key)
    model = Model(kind)
    write_random(dataset, model, rng, batches=3)
    if model.rows:
        dataset.compact()
        model.fold()
    write_random(dataset, model, rng, batches=4)

    merged, raw = expected(model.rows), expected(model.raw)
    assert_looked_up(dataset, model, rng)
    assert arrow_rows(dataset.to_arrow()) == merged
    assert arrow_rows(dataset.to_arrow(raw=True)) == raw
    assert arrow_rows(dataset.read().toArrow()) == merged
    for settings in (DISTRIBUTED, BY_POSITION):
        another = Lake.open(path, settings=settings, spark=spark).dataset(NAME)
        assert arrow_rows(another.read().toArrow()) == merged
        if thorough:
            assert arrow_rows(another.read(raw=True).toArrow()) == raw
    if thorough:
        assert arrow_rows(dataset.read(raw=True).toArrow()) == raw

    for number, settings in enumerate((SMALL, DISTRIBUTED)):
        folded = folded_copy(path, folder / f"copy{number}", settings, model, spark)
        assert arrow_rows(folded.to_arrow()) == arrow_rows(folded.to_arrow(raw=True)) == merged
        assert duckdb_rows(folded) == merged
        folded_model = deepcopy(model)
        folded_model.fold()
        assert_looked_up(folded, folded_model, rng)
        if thorough or not number:
            assert_found_by_key(folded, model)


def assert_looked_up(dataset: Dataset, model: Model, rng: random.Random) -> None:
    """Look up present and absent keys, one by one and together, twice: the second time uses memory."""
    kind = model.kind
    for keys in ([rng.choice(kind.keys)], rng.sample(kind.keys, len(kind.keys)), rng.sample(kind.keys, 2)) * 2:
        wanted = [dict(zip(kind.key, key, strict=True)) for key in keys]
        for rows, raw in ((model.rows, False), (model.raw, True)):
            there = [rows[known] for key in wanted if (known := model.key_of(key)) in rows]
            found = dataset.get(wanted, raw=raw).to_pylist()
            assert plain_rows(found) == plain_rows(there)
            assert [model.key_of(row) for row in found] == [model.key_of(row) for row in there]


def duckdb_rows(dataset: Dataset) -> list[tuple[Any, ...]]:
    """Read base's files with an engine that does not know our format."""
    files = [str(dataset.path / "base" / file.path) for file in store_of(dataset).snapshot().base.files]
    if not files:
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return arrow_rows(connection.read_parquet(files).to_arrow_table())


def literal(value: Any) -> "Column":  # noqa: ANN401
    """Return a SQL literal; times are passed as text, because Java's old calendar would shift those before 1582."""
    from pyspark.sql import functions as F

    if isinstance(value, datetime.datetime):
        return F.lit(value.isoformat()).cast("timestamp" if value.tzinfo else "timestamp_ntz")
    return F.lit(value.isoformat()).cast("date") if isinstance(value, datetime.date) else F.lit(value)


def assert_found_by_key(dataset: Dataset, model: Model) -> None:
    """A filter on the key finds the row: statistics in the log do not hide it."""
    from pyspark.sql import functions as F

    kind, rows = model.kind, model.rows
    frame = dataset.read()
    condition = F.lit(False)  # noqa: FBT003
    picked = list(rows.values())[:6]
    for row in picked:
        one = F.lit(True)  # noqa: FBT003
        for name in kind.key:
            one = one & (F.col(name) == literal(row[name]))
        condition = condition | one
    for name in kind.key:
        values = [row[name] for row in picked]
        if picked and not isinstance(values[0], bool):
            condition = condition & F.col(name).between(literal(min(values)), literal(max(values)))
    assert arrow_rows(frame.where(condition).toArrow()) == plain_rows(picked)


@pytest.mark.spark
def test_a_fold_is_not_misled_by_an_inner_field_that_has_the_name_of_the_key(lake_path: Path, spark: "SparkSession"):
    schema = pa.schema([("place", pa.struct([("id", pa.string())])), pa.field("id", pa.string(), nullable=False)])
    dataset = Lake.open(lake_path, settings=SMALL, spark=spark).create(NAME, schema, key="id")
    dataset.upsert([{"id": "a", "place": {"id": "y"}}, {"id": "b", "place": {"id": "z"}}])
    dataset.compact()
    dataset.upsert([{"id": "a", "place": {"id": "new"}}])
    report = dataset.compact()
    assert (report.base_rows, report.final_rows) == (2, 2)
    rows = [{"place": {"id": "new"}, "id": "a"}, {"place": {"id": "z"}, "id": "b"}]
    assert arrow_rows(dataset.to_arrow()) == plain_rows(rows)


@pytest.mark.spark
@pytest.mark.parametrize("zone", [None, "UTC"], ids=["without-zone", "with-zone"])
def test_base_is_readable_by_sparks_own_delta_reader(zone: str | None, lake_path: Path, spark: "SparkSession"):
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("at", pa.timestamp("us", tz=zone))])
    dataset = Lake.open(lake_path, settings=SMALL, spark=spark).create(NAME, schema, key="id")
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=datetime.UTC if zone else None)
    dataset.upsert([{"id": "a", "at": moment}])
    dataset.compact()
    stranger = spark.read.format("delta").load(str(dataset.path / "base"))
    assert arrow_rows(stranger.toArrow()) == arrow_rows(dataset.to_arrow()) == plain_rows([{"id": "a", "at": moment}])


@pytest.mark.spark
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in OFTEN_TRIED], ids=str)
@once
@given(seed=SEEDS)
def test_arrow_spark_duckdb_and_a_dict_agree_before_and_after_both_folds(
    kind: Kind, seed: int, tmp_path: Path, spark: "SparkSession"
):
    check_readers(seed, kind, tmp_path / "run", spark)


@pytest.mark.spark
def test_a_filter_finds_a_time_that_the_old_calendar_does_not_have(lake_path: Path, spark: "SparkSession"):
    with Lake.open(lake_path, spark=spark) as lake:
        dataset = lake.create(NAME, "id TIMESTAMP NOT NULL, n INT", key="id")
        gap = datetime.datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=datetime.UTC)
        dataset.upsert([{"id": gap, "n": 1}])
        dataset.compact()
        frame = dataset.read()
        assert frame.where(frame["id"] == literal(gap)).count() == 1


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS, ids=str)
@often
@given(seed=SEEDS)
def test_arrow_spark_duckdb_and_a_dict_agree_on_many_histories(
    kind: Kind, seed: int, tmp_path: Path, spark: "SparkSession"
):
    check_readers(seed, kind, tmp_path / "run", spark, thorough=True)
