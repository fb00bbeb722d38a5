"""Costs of checksums of data files: the same calls with verification on and off, in turn, on the same rows.

Files always have their checksums; the setting `verify_checksums` decides whether readers verify them. So reads, lookups
and folds are measured by the setting. Writing is measured by itself: one change file of ours beside the same rows written
by pyarrow with the same options and without checksums.

Lookups have nothing in memory but the open tables. Every other read is of a state that was read before, so that what is
measured is the reading of pages.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from bench.data import KEY, NAME, OnePercent, change_rows, key_column, settings, spread_seeds
from bench.measure import Sample, Summary, interleaved
from bench.merged import narrow, wide
from bench.plan import MILLION, Run, size_text
from bench.results import Check, Report, Row, Sense, growth
from siltstone import Dataset, Lake
from siltstone.delta.parquet import ROW_GROUP_ROWS, write_file, writer_options

VERIFIED: Final = "verified"
UNVERIFIED: Final = "not verified"
WRITTEN: Final = "with checksums"
PLAIN: Final = "without checksums"
WRITE: Final = "write a file of 10,000 rows"
FOLD: Final = "fold 1% changed rows"
BATCHES: Final = (1, 10_000)
KEYS: Final = (1, 100)
REPEATS: Final = 5
"""How often a call of milliseconds is made in each round."""

Call = Callable[[Dataset], object]


def bench_checksums(run: Run) -> Report:
    """Measure each size from a million rows on, or the largest one there is."""
    sizes = run.large_sizes
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in sizes:
        found = _write(run) if rows == sizes[0] else {}
        found |= _reads(run, rows) | _folds(run, rows)
        lines += [_row(rows, name, found, before.get(name)) for name in found]
        before |= {name: summary.seconds for name, summary in found.items()}
    return Report(
        name="checksums",
        title="Checksums of data files: cost of verifying them on read, and of writing them",
        rows=tuple(lines),
        notes=(
            "The ratio is with checksums over without. Read files have checksums on both sides; `verify_checksums` differs.",
            "Lookups have nothing in memory but the open tables. 1% of the rows are changed in 100 batches and not folded.",
        ),
    )


def _write(run: Run) -> dict[str, Summary]:
    rows = change_rows(MILLION, 10_000, seed=5)
    path = run.stage.folder / "checksums.parquet"
    options = writer_options(rows.schema, [KEY], rows=rows.num_rows) | {"write_page_checksum": False}
    options |= {"row_group_size": ROW_GROUP_ROWS, "use_dictionary": rows.column_names}
    steps = {
        f"{WRITE}, {WRITTEN}": partial(_repeated, run, lambda: write_file(rows, path, key=[KEY])),
        f"{WRITE}, {PLAIN}": partial(_repeated, run, lambda: pq.write_table(rows, path, **options)),
    }
    found = interleaved(steps, rounds=run.rounds)
    path.unlink()
    return found


def _reads(run: Run, rows: int) -> dict[str, Summary]:
    run.log(f"checksums: preparing {size_text(rows)} rows")
    path = run.stage.copy(run.stage.lake(rows), "checksums")
    with _open(run, path, verify=True) as verified, _open(run, path, verify=False) as unverified:
        datasets = {VERIFIED: verified.dataset(NAME), UNVERIFIED: unverified.dataset(NAME)}
        OnePercent.of(rows).apply(datasets[VERIFIED])
        run.log(f"checksums: {size_text(rows)} rows, {run.rounds} rounds")
        steps = {
            f"{what}, {side}": partial(_measured, run, what, call, dataset)
            for what, call in _calls(rows).items()
            for side, dataset in datasets.items()
        }
        found = interleaved(steps, rounds=run.rounds, warm_ups=2)
    run.stage.discard(path)
    return found


def _open(run: Run, path: Path, *, verify: bool) -> Lake:
    return Lake.open(path, settings=replace(settings(durable=False), verify_checksums=verify), spark=run.stage.spark)


def _calls(rows: int) -> dict[str, Call]:
    seeds = spread_seeds(11_000_000)

    def upsert(count: int, dataset: Dataset) -> object:
        return dataset.upsert(change_rows(rows, count, seed=next(seeds)))

    def lookup(count: int, dataset: Dataset) -> object:
        picked = np.random.default_rng(next(seeds)).choice(rows, size=count, replace=False)
        keys: list[Any] = key_column(picked * 2).to_pylist()
        return dataset.get(keys)

    return {
        **{f"look up {_counted(count)}": partial(lookup, count) for count in KEYS},
        "sum of a column on Spark": lambda dataset: narrow(dataset.read()),
        "hash of all columns on Spark": lambda dataset: wide(dataset.read()),
        "all rows as Arrow": lambda dataset: dataset.to_arrow(),
        **{f"upsert {_counted(count)}": partial(upsert, count) for count in BATCHES},
    }


def _counted(count: int) -> str:
    return f"{count:,} row{'s' if count > 1 else ''}"


def _measured(run: Run, what: str, call: Call, dataset: Dataset) -> Sample:
    """Measure one call. What a lookup left in memory is removed before each."""
    if what.startswith("look up"):
        return _repeated(run, partial(call, dataset), before=dataset._store.forget)  # noqa: SLF001
    if what.startswith("upsert 1 "):
        return _repeated(run, partial(call, dataset))
    return run.meter.measure(partial(call, dataset))


def _repeated(run: Run, call: Callable[[], object], *, before: Callable[[], object] = lambda: None) -> Sample:
    """Return the median of several calls that take milliseconds; what happens `before` each is not measured."""
    samples: list[Sample] = []
    for _ in range(REPEATS):
        before()
        samples.append(run.meter.time(call))
    return sorted(samples, key=lambda sample: sample.seconds)[REPEATS // 2]


def _folds(run: Run, rows: int) -> dict[str, Summary]:
    prepared = run.stage.copy(run.stage.lake(rows), "checksums-fold")
    with _open(run, prepared, verify=True) as lake:
        OnePercent.of(rows).apply(lake.dataset(NAME))
    steps = {
        f"{FOLD}, {VERIFIED}": partial(_fold, run, prepared, verify=True),
        f"{FOLD}, {UNVERIFIED}": partial(_fold, run, prepared, verify=False),
    }
    found = interleaved(steps, rounds=run.rounds_at(rows))
    run.stage.discard(prepared)
    return found


def _fold(run: Run, prepared: Path, *, verify: bool) -> Sample:
    path = run.stage.copy(prepared, "checksums-folded")
    with _open(run, path, verify=verify) as lake:
        sample = run.meter.measure(lake.dataset(NAME).compact)
    run.stage.discard(path)
    return sample


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    what, side = name.rsplit(", ", 1)
    summary = found[name]
    checks: tuple[Check, ...] = ()
    if side in (VERIFIED, WRITTEN):
        other = found.get(f"{what}, {UNVERIFIED}") or found[f"{what}, {PLAIN}"]
        checks = (Check(ratio=summary.seconds / other.seconds, of="without", sense=Sense.AT_MOST),)
    return Row(
        what=f"{name}, {size_text(rows)}" if what != WRITE else name,
        time=summary,
        checks=checks,
        growth=growth(summary.seconds, before),
        uses_jvm="Spark" in what or what == FOLD,
    )
