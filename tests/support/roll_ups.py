"""Logs with many small files in base, made without Spark, for tests of roll-ups."""

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from siltstone import Dataset, Lake, Settings
from siltstone.config import JobPlace
from siltstone.model.columns import APP_FOLD, PERIOD
from siltstone.model.commit import Commit, CommitKind
from tests.support.folds import stage
from tests.support.internals import store_of

NAME = "web.eu.clicks"
SCHEMA = "at TIMESTAMP NOT NULL, visitor STRING, n INT"
AT = datetime.datetime(2026, 11, 1, 5, 30, tzinfo=datetime.UTC)
HOUR = "2026-11-01T05"
SETTINGS = Settings(
    durable=False,
    jobs=JobPlace.WORKER,
    max_jobs=2,
    worker_memory_mb=1024,
    spark_master="local[2]",
    spark_short_run=True,
    spark_shared=False,
    tiers="daily.min_files=2; daily.max_files=100; hourly.enabled=no",
    spark={"spark.sql.shuffle.partitions": "2", "spark.driver.maxResultSize": "4m"},
)


def make_log(lake: Lake, *, files: int, rows: int = 10, name: str = NAME, width: int = 3) -> Dataset:
    """Create a log whose base has a number of files with a number of rows, all in one hour."""
    log = lake.create(name, SCHEMA, time="at", subject="visitor", sort_by=["n"])
    add_files(log, files=files, rows=rows, width=width)
    return log


def add_files(log: Dataset, *, files: int, rows: int = 10, start: int = 0, width: int = 3) -> None:
    """Commit a number of files to base, as folds do."""
    store = store_of(log).current()
    staged = tuple(
        stage(store, store.base, table(store.base_schema, rows, start + number * rows, width), {PERIOD: HOUR})
        for number in range(files)
    )
    version = store.base.pin().version
    store.base.commit(
        lambda _: Commit(kind=CommitKind.FOLD, plan_version=version, adds=staged, transactions={APP_FOLD: 0})
    )


def table(schema: pa.Schema, rows: int, start: int, width: int) -> pa.Table:
    """Return rows with the numbers from `start` on, in random order."""
    numbers = np.random.default_rng(start).permutation(np.arange(start, start + rows))
    moment = pa.repeat(pa.scalar(AT, pa.timestamp("us", tz="UTC")), rows)
    columns: dict[str, Any] = {
        "at": moment,
        "visitor": pa.array([f"V-{n}" * width for n in range(7)]).take(pa.array(numbers % 7)),
        "n": pa.array(numbers).cast(schema.field("n").type),
        "_written_at": moment,
        "_batch_id": pa.repeat("batch", rows),
    }
    missing = {f.name: pa.nulls(rows, f.type) for f in schema if f.name not in columns}
    return pa.table([(columns | missing)[name] for name in schema.names], schema=schema)


def numbers(log: Dataset) -> Counter[int]:
    """Return the numbers of all visible rows: none may be missing or repeated."""
    return Counter(log.to_arrow().column("n").to_pylist())


def base_files(log: Dataset) -> list[Path]:
    """Return the live files of base."""
    return [store_of(log).base.path / file.path for file in store_of(log).snapshot().base.files]


def leftovers(log: Dataset) -> int:
    """Return the number of unreferenced files."""
    return log.status().unreferenced_files
