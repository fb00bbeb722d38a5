"""Folds of 1% changed rows into the base, against MERGE of the same changes and a plain Spark copy of the base.

Every round works on a fresh copy of the same state (data files are linked). The MERGEs get the last change of each key as one
Parquet file; the fold starts from its hundred change files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from bench.data import OnePercent, open_dataset
from bench.measure import Sample, Summary, interleaved
from bench.peers import MERGE, MERGE_VECTORS, SparkMerge
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense, growth

FOLD: Final = "fold"
FOLD_FSYNC: Final = "fold, fsync"
COPY: Final = "Spark Parquet copy"
MERGES: Final = (MERGE, MERGE_VECTORS)
COPY_AIM: Final = 1.5


def bench_fold(run: Run) -> Report:
    """Measure every size."""
    before: dict[str, float] = {}
    lines: list[Row] = []
    for rows in run.sizes:
        found = _size(run, rows)
        lines += [_row(rows, name, found, before.get(name)) for name in found]
        before |= {name: summary.seconds for name, summary in found.items()}
    return Report(
        name="fold",
        title="Folding 1% changed rows (100 batches, 1 in 100 of them tombstones) into the base",
        rows=tuple(lines),
        notes=(
            "A MERGE's ratio is its median over the fold's and must be above 1; the fold's is its own over the copy's.",
        ),
    )


def _size(run: Run, rows: int) -> dict[str, Summary]:
    run.log(f"fold: preparing {size_text(rows)} rows")
    changes = OnePercent.of(rows)
    prepared = run.stage.copy(run.stage.lake(rows), "fold-prepared")
    lake, dataset = open_dataset(run.stage, prepared, durable=False)
    with lake:
        changes.apply(dataset)
    source = run.stage.folder / f"fold-source-{rows}.parquet"
    pq.write_table(changes.merged(), source)
    steps: dict[str, Callable[[], Sample]] = {
        FOLD: lambda: _fold(run, prepared, durable=False),
        MERGE: lambda: _merge(run, rows, source, deletion_vectors=False),
        MERGE_VECTORS: lambda: _merge(run, rows, source, deletion_vectors=True),
        COPY: lambda: _copy(run, rows),
        FOLD_FSYNC: lambda: _fold(run, prepared, durable=True),
    }
    run.log(f"fold: {size_text(rows)} rows, {run.rounds_at(rows)} rounds")
    found = interleaved(steps, rounds=run.rounds_at(rows))
    run.stage.discard(prepared)
    source.unlink()
    return found


def _fold(run: Run, prepared: Path, *, durable: bool) -> Sample:
    path = run.stage.copy(prepared, "fold")
    lake, dataset = open_dataset(run.stage, path, durable=durable)
    with lake:
        sample = run.meter.measure(dataset.compact)
    run.stage.discard(path)
    return sample


def _merge(run: Run, rows: int, source: Path, *, deletion_vectors: bool) -> Sample:
    path = run.stage.copy(run.stage.plain(rows, deletion_vectors=deletion_vectors), "fold-merge")
    peer = SparkMerge(stage=run.stage, path=path)
    peer.prepare_file(source)
    sample = run.meter.measure(peer.upsert_and_delete)
    peer.close()
    return sample


def _copy(run: Run, rows: int) -> Sample:
    lake, dataset = open_dataset(run.stage, run.stage.lake(rows), durable=False)
    base = str(dataset.path / "base")
    target = run.stage.folder / "fold-copy"
    spark = run.stage.spark
    with lake:
        sample = run.meter.measure(
            lambda: spark.read.format("delta").load(base).write.option("compression", "zstd").parquet(str(target))
        )
    run.stage.discard(target)
    return sample


def _row(rows: int, name: str, found: dict[str, Summary], before: float | None) -> Row:
    summary, ours = found[name], found[FOLD]
    checks: tuple[Check, ...] = ()
    if name in MERGES:
        checks = (Check(ratio=summary.seconds / ours.seconds, of=FOLD, sense=Sense.AT_LEAST, must=1.0),)
    elif name == FOLD:
        checks = (Check(ratio=ours.seconds / found[COPY].seconds, of="copy", sense=Sense.AT_MOST, aim=COPY_AIM),)
    elif name == FOLD_FSYNC:
        checks = (Check(ratio=summary.seconds / found[COPY].seconds, of="copy", sense=Sense.AT_MOST),)
    return Row(what=f"{name}, {size_text(rows)}", time=summary, checks=checks, growth=growth(summary.seconds, before))
