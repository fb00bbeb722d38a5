"""A thousand unsquashed batches against the same ones squashed: costs of small files for reads, lookups of all rows, and writes.

Writers squash by themselves; here that is off on one side, and done once on the other. Both sides hold the same changes: the
first read after the writes, a read of the same state again, the rows as Arrow, and one more upsert.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from bench.data import NAME, change_rows, settings, spread_seeds
from bench.measure import Sample, Summary
from bench.merged import narrow
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense
from siltstone import Dataset, Lake

BATCHES: Final = 1_000
QUICK_BATCHES: Final = 100
ROWS_A_BATCH: Final = 10
UNSQUASHED: Final = "unsquashed"
SQUASHED: Final = "squashed"
LARGEST: Final = 1_000_000


def bench_squash(run: Run) -> Report:
    """Measure at a million rows, or the largest size below."""
    rows = max((size for size in run.sizes if size <= LARGEST), default=run.sizes[0])
    batches = QUICK_BATCHES if run.quick else BATCHES
    path = run.stage.copy(run.stage.lake(rows), "squash")
    off = replace(settings(durable=False), squash_files=0)
    with Lake.open(path, settings=off, spark=run.stage.spark) as lake:
        run.log(f"squash: {batches:,} batches of {ROWS_A_BATCH} rows into {size_text(rows)}")
        seeds = spread_seeds(7_000_000)
        for _ in range(batches):
            lake.dataset(NAME).upsert(change_rows(rows, ROWS_A_BATCH, seed=next(seeds)))
    other = run.stage.copy(path, "squashed")
    squashing: list[Sample] = []
    with (
        Lake.open(path, settings=off, spark=run.stage.spark) as before,
        Lake.open(other, settings=off, spark=run.stage.spark) as after,
    ):
        sides = {UNSQUASHED: before.dataset(NAME), SQUASHED: after.dataset(NAME)}
        squashing.append(run.meter.measure(sides[SQUASHED].squash))
        files = {name: dataset.status().backlog_files for name, dataset in sides.items()}
        found = _rounds(run, rows, sides)
    run.stage.discard(path, other)
    lines = [Row(what=f"one squash of {batches:,} files", time=Summary.of(squashing), uses_jvm=False)]
    for what, times in found.items():
        gain = times[UNSQUASHED].seconds / times[SQUASHED].seconds
        check = Check(ratio=gain, of="faster when squashed", sense=Sense.AT_LEAST)
        lines += [
            Row(what=f"{what}, {UNSQUASHED}", time=times[UNSQUASHED]),
            Row(what=f"{what}, {SQUASHED}", time=times[SQUASHED], checks=(check,)),
        ]
    return Report(
        name="squash",
        title=f"{batches:,} batches of {ROWS_A_BATCH} rows over {size_text(rows)} rows, unsquashed and squashed",
        rows=tuple(lines),
        notes=(
            f"Files of changes: {files[UNSQUASHED]:,} and {files[SQUASHED]:,}. By default writers squash at 32 files.",
        ),
    )


def _rounds(run: Run, rows: int, sides: dict[str, Dataset]) -> dict[str, dict[str, Summary]]:
    seeds = spread_seeds(8_000_000)
    taken: dict[str, dict[str, list[Sample]]] = {}
    for number in range(1 + run.rounds):
        batch = change_rows(rows, 1, seed=next(seeds))
        for name, dataset in sides.items():
            for what, call in _calls(dataset, batch).items():
                sample = run.meter.measure(call)
                if number:
                    taken.setdefault(what, {}).setdefault(name, []).append(sample)
    return {what: {name: Summary.of(s) for name, s in by_side.items()} for what, by_side in taken.items()}


def _calls(dataset: Dataset, batch: object) -> dict[str, Callable[[], object]]:
    return {
        "upsert of one row": partial(dataset.upsert, batch),
        "first read after it": lambda: narrow(dataset.read()),
        "read of the same state": lambda: narrow(dataset.read()),
        "all rows as Arrow": dataset.to_arrow,
    }
