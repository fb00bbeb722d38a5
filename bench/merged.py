"""Merged reads: the view over 1% unfolded changes against the bare scan of the clean base, on Spark and as Arrow.

The changes are a hundred batches, and tombstones for one in a hundred of their keys. *Narrow* sums one column, *wide* hashes
every column of every row. All sides are planned again in each round: opening the frame is measured, too. The *clean base* is
read by Spark's own Delta reader and carries the bars; the *clean dataset* is `Dataset.read` with nothing unfolded, which names
its files to Spark itself and so saves the log's resolution: the second ratio shows what the changes alone cost. A read caches
its work on one state of the changes. So the first read after a further change is measured separately.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable

from bench.data import OnePercent, change_rows, open_dataset, spread_seeds
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, growth
from siltstone.dataset.dataset import Dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLEAN: Final = "clean base"
FOLDED: Final = "clean dataset"
FIRST: Final = "merged view after a change"
MERGED: Final = "merged view"
NARROW: Final = "narrow"
WIDE: Final = "wide"
ARROW: Final = "to Arrow"
BARS: Final = {NARROW: (3.0, 1.7), WIDE: (1.5, 1.2)}
WARM_UPS: Final = 2


def bench_merged(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    sizes = run.large_sizes
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in sizes:
        lines += _size(run, rows, before)
    return Report(
        name="merged",
        title="Reads with 1% of the rows changed in 100 batches and not folded",
        rows=tuple(lines),
        notes=(
            "Narrow sums one column; wide hashes all columns.",
            "The clean base is read by Spark's own Delta reader, for Arrow by delta-rs; the bars are held against it.",
            "The clean dataset is the same rows by `Dataset.read` with nothing unfolded.",
            "Writers squash by themselves, as they do by default: the hundred batches are in fewer files when they are read.",
            "The bars hold for reads of a state that was read before; the first read after one more upsert is a row of its own.",
        ),
    )


def _size(run: Run, rows: int, before: dict[str, float]) -> list[Row]:
    run.log(f"merged: preparing {size_text(rows)} rows")
    path = run.stage.copy(run.stage.lake(rows), "merged")
    lake, dataset = open_dataset(run.stage, path, durable=False)
    untouched, clean = open_dataset(run.stage, run.stage.lake(rows), durable=False)
    with lake, untouched:
        OnePercent.of(rows).apply(dataset)
        _agree(dataset)
        queries = _queries(run, dataset, clean)
        samples: dict[str, list[Sample]] = {name: [] for name in queries}
        seeds = spread_seeds(9_000_000)
        run.log(f"merged: {size_text(rows)} rows, {run.rounds} rounds")
        for number in range(WARM_UPS + run.rounds):
            for name, query in queries.items():
                if name.endswith(FIRST):
                    dataset.upsert(change_rows(rows, 1, seed=next(seeds)))
                sample = run.meter.measure(query)
                if number >= WARM_UPS:
                    samples[name].append(sample)
    run.stage.discard(path)
    found = {name: Summary.of(taken) for name, taken in samples.items()}
    lines = [_row(rows, name, found, before.get(name)) for name in found]
    before |= {name: summary.seconds for name, summary in found.items()}
    return lines


def _queries(run: Run, dataset: Dataset, untouched: Dataset) -> dict[str, Callable[[], object]]:
    spark, base = run.stage.spark, str(dataset.path / "base")

    def clean() -> "DataFrame":
        return spark.read.format("delta").load(base)

    return {
        f"{NARROW}, {CLEAN}": lambda: narrow(clean()),
        f"{NARROW}, {FOLDED}": lambda: narrow(untouched.read()),
        f"{NARROW}, {FIRST}": lambda: narrow(dataset.read()),
        f"{NARROW}, {MERGED}": lambda: narrow(dataset.read()),
        f"{WIDE}, {CLEAN}": lambda: wide(clean()),
        f"{WIDE}, {FOLDED}": lambda: wide(untouched.read()),
        f"{WIDE}, {MERGED}": lambda: wide(dataset.read()),
        f"{ARROW}, {CLEAN}": lambda: DeltaTable(base).to_pyarrow_table(),
        f"{ARROW}, {FOLDED}": untouched.to_arrow,
        f"{ARROW}, {MERGED}": dataset.to_arrow,
    }


def narrow(frame: "DataFrame") -> object:
    """Sum one column."""
    from pyspark.sql import functions as F

    return frame.agg(F.sum("amount")).collect()


def wide(frame: "DataFrame") -> object:
    """Touch every value of every column."""
    from pyspark.sql import functions as F

    return frame.agg(F.bit_xor(F.xxhash64(*frame.columns))).collect()


def _agree(dataset: Dataset) -> None:
    """Do not measure a wrong answer: both ways to read must say the same number of rows and the same quantities."""
    from pyspark.sql import functions as F

    rows, total = dataset.read().agg(F.count(F.lit(1)), F.sum("quantity")).collect()[0]
    table = dataset.to_arrow()
    if (rows, total) != (
        table.num_rows,
        sum(chunk.to_numpy().sum(dtype="int64") for chunk in table.column("quantity").chunks),
    ):
        raise AssertionError("Spark and Arrow read different rows from the same dataset.")


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    kind, side = name.split(", ")
    summary = found[name]
    checks: tuple[Check, ...] = ()
    if side in (MERGED, FIRST):
        must, aim = BARS.get(kind, (None, None)) if side == MERGED else (None, None)
        ratio = summary.seconds / found[f"{kind}, {CLEAN}"].seconds
        alone = summary.seconds / found[f"{kind}, {FOLDED}"].seconds
        checks = (
            Check(ratio=ratio, of="clean base", sense=Sense.AT_MOST, must=must, aim=aim),
            Check(ratio=alone, of="clean dataset", sense=Sense.AT_MOST),
        )
    return Row(
        what=f"{name}, {size_text(rows)}",
        time=summary,
        checks=checks,
        growth=growth(summary.seconds, before),
        uses_jvm=kind != ARROW,
    )
