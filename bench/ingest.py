"""Bulk loads: `Dataset.ingest` of Parquet files into an empty dataset, against Spark reading and writing the same rows to Delta.

The load sorts by key, counts repeated and missing keys, hashes its files and verifies what it wrote; Spark's own write does
none of that. *Sorted Delta* is Spark's write with the same sort, to show what the sort alone costs. Every round loads into a
fresh dataset or table of the same session.
"""

from collections.abc import Callable
from typing import Final

from bench.data import KEY, NAME, SCHEMA, settings
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, growth
from siltstone import Lake

INGEST: Final = "ingest"
INGEST_FSYNC: Final = "ingest, fsync"
DELTA: Final = "Spark to Delta"
SORTED: Final = "Spark to Delta, sorted"
BAR: Final = 1.5
WARM_UPS: Final = 1
SMALLEST: Final = 1_000_000


def bench_ingest(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in [rows for rows in run.sizes if rows >= SMALLEST] or [run.sizes[-1]]:
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
    run.say(f"ingest: preparing {size_text(rows)} rows")
    run.stage.source(rows)
    steps: dict[str, Callable[[], Sample]] = {
        INGEST: lambda: _ingest(run, rows, durable=False),
        DELTA: lambda: _delta(run, rows, is_sorted=False),
        SORTED: lambda: _delta(run, rows, is_sorted=True),
        INGEST_FSYNC: lambda: _ingest(run, rows, durable=True),
    }
    samples: dict[str, list[Sample]] = {name: [] for name in steps}
    run.say(f"ingest: {size_text(rows)} rows, {run.rounds_at(rows)} rounds")
    for number in range(WARM_UPS + run.rounds_at(rows)):
        for name, measured in steps.items():
            sample = measured()
            if number >= WARM_UPS:
                samples[name].append(sample)
    return {name: Summary.of(taken) for name, taken in samples.items()}


def _ingest(run: Run, rows: int, *, durable: bool) -> Sample:
    path = run.stage.folder / "ingest"
    run.stage.discard(path)
    with Lake.open(path, settings=settings(durable=durable), spark=run.stage.spark) as lake:
        dataset = lake.create(NAME, SCHEMA, key=KEY)
        sample = run.meter.measure(lambda: dataset.ingest(run.stage.source(rows)))
    run.stage.discard(path)
    return sample


def _delta(run: Run, rows: int, *, is_sorted: bool) -> Sample:
    path = run.stage.folder / "ingest-delta"
    run.stage.discard(path)

    def write() -> None:
        frame = run.stage.spark.read.parquet(str(run.stage.source(rows)))
        if is_sorted:
            frame = frame.sort(KEY)
        frame.write.format("delta").save(str(path))

    sample = run.meter.measure(write)
    run.stage.discard(path)
    return sample


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    summary = found[name]
    checks: tuple[Check, ...] = ()
    if name in (INGEST, INGEST_FSYNC):
        ratio = summary.seconds / found[DELTA].seconds
        must = BAR if name == INGEST else None
        checks = (Check(ratio=ratio, of=f"of {DELTA}", sense=Sense.AT_MOST, must=must),)
    return Row(
        what=f"{name}, {size_text(rows)} rows", time=summary, checks=checks, growth=growth(summary.seconds, before)
    )
