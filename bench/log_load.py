"""The first load of a log, straight to base, against the way through changes and a fold, and against Spark's own writes.

A log's base is divided by hour and sorted inside of each; the load counts bad rows, hashes its files and verifies what it wrote.
Spark's own write does none of that; *by hour* is Spark's write with the same division, to show what that alone costs. The source
covers three days, its rows are in no order. Every round loads into a fresh log or table of the same session.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.data import NAME, SCHEMA, settings
from bench.measure import Sample, Summary, interleaved
from bench.plan import MILLION, Run, size_text
from bench.results import Check, Report, Row, Sense, growth
from siltstone import Dataset, Lake

TIME: Final = "updated_at"
FIRST: Final = "first load"
THROUGH: Final = "load as changes, then fold"
DELTA: Final = "Spark to Delta"
BY_HOUR: Final = "Spark to Delta, by hour"
AGAINST: Final = (THROUGH, DELTA, BY_HOUR)
BAR: Final = 1.0
"""What goes straight to base should not take longer than what is written twice."""
PERIOD_FORMAT: Final = "yyyy-MM-dd'T'HH"


def bench_log_load(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in run.large_sizes:
        found = _size(run, rows)
        lines += [_row(rows, name, found, before.get(name)) for name in found]
        before |= {name: summary.seconds for name, summary in found.items()}
    return Report(
        name="log_load",
        title="Loading Parquet files into an empty log",
        rows=tuple(lines),
        notes=("Three days in hours. A first load's ratios are its median over those of the others.",),
    )


def _size(run: Run, rows: int) -> dict[str, Summary]:
    run.log(f"log load: preparing {size_text(rows)} rows")
    source = run.stage.of_three_days(rows)
    steps: dict[str, Callable[[], Sample]] = {
        FIRST: lambda: _loaded(run, source, first=True),
        THROUGH: lambda: _loaded(run, source, first=False),
        DELTA: lambda: _delta(run, source, by_hour=False),
        BY_HOUR: lambda: _delta(run, source, by_hour=True),
    }
    run.log(f"log load: {size_text(rows)} rows, {run.rounds_at(rows)} rounds")
    return interleaved(steps, rounds=run.rounds_at(rows))


def _loaded(run: Run, source: Path, *, first: bool) -> Sample:
    path = run.stage.folder / "log-load"
    run.stage.discard(path)
    with Lake.open(path, settings=settings(durable=False), spark=run.stage.spark) as lake:
        log = lake.create(NAME, SCHEMA, time=TIME, sort_by=["customer"])
        if not first:  # a log that has a row is not empty: the load becomes a batch of changes
            log.append([{"id": "K", TIME: "2025-01-01T00:00:00Z"}])
        sample = run.meter.measure(lambda: _load(log, source, first=first))
    run.stage.discard(path)
    return sample


def _load(log: Dataset, source: Path, *, first: bool) -> None:
    report = log.ingest(source)
    if report.first_load != first:
        raise RuntimeError(f"the load was {'no' if first else 'a'} first load: what is measured is not what it says")
    if not first:
        log.compact()


def _delta(run: Run, source: Path, *, by_hour: bool) -> Sample:
    path = run.stage.folder / "log-load-delta"
    run.stage.discard(path)

    def write() -> None:
        from pyspark.sql import functions as F

        frame = run.stage.spark.read.parquet(str(source))
        if not by_hour:
            frame.write.format("delta").save(str(path))
            return
        hours = frame.withColumn("period", F.date_format(TIME, PERIOD_FORMAT)).repartition("period")
        hours.write.format("delta").partitionBy("period").save(str(path))

    sample = run.meter.measure(write)
    run.stage.discard(path)
    return sample


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    summary = found[name]
    checks: tuple[Check, ...] = ()
    if name == FIRST:
        checks = tuple(
            Check(
                ratio=summary.seconds / found[other].seconds,
                of=f"of {other}",
                sense=Sense.AT_MOST,
                aim=BAR if other == THROUGH and rows >= MILLION else None,
            )
            for other in AGAINST
        )
    return Row(
        what=f"{name}, {size_text(rows)} rows", time=summary, checks=checks, growth=growth(summary.seconds, before)
    )
