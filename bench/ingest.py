"""Bulk loads: `Dataset.ingest` of Parquet files into an empty dataset, against Spark reading and writing the same rows to Delta.

The load sorts by key, counts repeated and missing keys, hashes its files and verifies what it wrote; Spark's own write does
none of that. *Sorted* is Spark's write with the same sort, to show what the sort alone costs. The rows of the source are in no
order, as those of most files are, and once in the order of their keys. Every round loads into a fresh dataset or table of the
same session.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.data import KEY, NAME, SCHEMA, settings
from bench.measure import Sample, Summary, interleaved
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, growth
from siltstone import Lake

INGEST: Final = "ingest"
INGEST_FSYNC: Final = "ingest, fsync"
INGEST_ORDERED: Final = "ingest, source in order"
DELTA: Final = "Spark to Delta"
DELTA_ORDERED: Final = "Spark to Delta, source in order"
SORTED: Final = "Spark to Delta, sorted"
AGAINST: Final = {INGEST: DELTA, INGEST_FSYNC: DELTA, INGEST_ORDERED: DELTA_ORDERED}
BAR: Final = 1.5
LARGE: Final = 10_000_000


def bench_ingest(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in run.large_sizes:
        found = _size(run, rows)
        lines += [_row(rows, name, found, before.get(name)) for name in found]
        before |= {name: summary.seconds for name, summary in found.items()}
    return Report(
        name="ingest",
        title="Loading Parquet files into an empty dataset",
        rows=tuple(lines),
        notes=(
            "An ingest's ratio is its median over that of Spark's own write to Delta, which neither sorts nor checks.",
        ),
    )


def _size(run: Run, rows: int) -> dict[str, Summary]:
    run.log(f"ingest: preparing {size_text(rows)} rows")
    mixed, ordered = run.stage.shuffled(rows), run.stage.source(rows)
    steps: dict[str, Callable[[], Sample]] = {
        INGEST: lambda: _ingest(run, mixed, durable=False),
        DELTA: lambda: _delta(run, mixed, is_sorted=False),
        SORTED: lambda: _delta(run, mixed, is_sorted=True),
        INGEST_FSYNC: lambda: _ingest(run, mixed, durable=True),
        INGEST_ORDERED: lambda: _ingest(run, ordered, durable=False),
        DELTA_ORDERED: lambda: _delta(run, ordered, is_sorted=False),
    }
    run.log(f"ingest: {size_text(rows)} rows, {run.rounds_at(rows)} rounds")
    return interleaved(steps, rounds=run.rounds_at(rows))


def _ingest(run: Run, source: Path, *, durable: bool) -> Sample:
    path = run.stage.folder / "ingest"
    run.stage.discard(path)
    with Lake.open(path, settings=settings(durable=durable), spark=run.stage.spark) as lake:
        dataset = lake.create(NAME, SCHEMA, key=KEY)
        sample = run.meter.measure(lambda: dataset.ingest(source))
    run.stage.discard(path)
    return sample


def _delta(run: Run, source: Path, *, is_sorted: bool) -> Sample:
    path = run.stage.folder / "ingest-delta"
    run.stage.discard(path)

    def write() -> None:
        frame = run.stage.spark.read.parquet(str(source))
        if is_sorted:
            frame = frame.sort(KEY)
        frame.write.format("delta").save(str(path))

    sample = run.meter.measure(write)
    run.stage.discard(path)
    return sample


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    summary = found[name]
    checks: tuple[Check, ...] = ()
    if name in AGAINST:
        ratio = summary.seconds / found[AGAINST[name]].seconds
        must = (
            BAR if name != INGEST_FSYNC and rows >= LARGE else None
        )  # below, it is the start of tasks that is measured
        checks = (Check(ratio=ratio, of=f"of {DELTA}", sense=Sense.AT_MOST, must=must),)
    return Row(
        what=f"{name}, {size_text(rows)} rows", time=summary, checks=checks, growth=growth(summary.seconds, before)
    )
