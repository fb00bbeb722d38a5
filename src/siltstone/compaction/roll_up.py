"""The roll-up: small files of a closed period of a log become few sorted ones, in the same period or a coarser one.

Flow of a job (the planner has chosen its files, see `candidates`):

1. plan: the files must be live; a file that is not any more makes the job void: plan anew;
2. run: Spark reads exactly these files and writes their rows in order, into at most as many files as the plan says. Those that
   cannot be read are named, and the job can be done without them;
3. verify: every footer is read back, and as many rows must be there as were taken;
4. commit: removes exactly the planned files and adds the new ones. Rows only move: readers and followers need not look.

The fold's watermark is left alone; late rows are folded into their hour and picked up by a later roll-up. A crash before 4
leaves files of a dead owner, which the sweep takes. A file's path says which tier wrote it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from siltstone.compaction.candidates import Candidate
from siltstone.compaction.commit import job_info
from siltstone.compaction.fold import discarding, spark_failures
from siltstone.compaction.inputs import check_readable
from siltstone.dataset.frames import scan_schema
from siltstone.dataset.store import Snapshot, Store
from siltstone.dataset.written import attempt_folder, collect_files, house_settings, manifest
from siltstone.errors import Conflict, Corruption, Fenced
from siltstone.failpoints import reach
from siltstone.model.columns import PERIOD
from siltstone.model.files import Commit, CommitKind, DataFile
from siltstone.model.results import RollUpReport
from siltstone.storage.parquet import spark_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIER_FOLDER: Final = "tier-"
"""Before a tier's name, the folder of the files that it wrote. Spark takes ``name=value`` for a column."""


def tier_of(path: str) -> str:
    """Return which tier wrote a file of base; empty if none did.

    >>> tier_of("data/abc/0/tier-daily/part-00000.parquet"), tier_of("data/abc/0/part-00000.parquet")
    ('daily', '')
    """
    folder = path.split("/")[-2] if "/" in path else ""
    return folder.removeprefix(TIER_FOLDER) if folder.startswith(TIER_FOLDER) else ""


def roll_up(
    spark: "SparkSession", store: Store, planned: Candidate, *, epoch: int | None = None, job: str = ""
) -> RollUpReport:
    """Do one planned roll-up.

    Raises:
        Conflict: files of the plan are not live any more, or another compaction was first. Nothing was changed.
        UnreadableFiles: some of the files cannot be read. Nothing was changed; the others can be rolled up without them.
        Corruption: what was written is not what was taken. Nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    taken = _taken(store, snapshot, planned)
    with spark_failures(store, snapshot, suspects=taken), house_settings(spark), store.presence() as owner:
        folder = f"{attempt_folder(owner.owner, 0)}/{TIER_FOLDER}{planned.lane}"
        with discarding(store, owner.owner):
            _write(spark, store, planned, taken, folder)
            reach("roll_up.after_write")
            written = _collected(store, planned, taken, folder)
            outputs = manifest(store.base.path, written)
        commit = Commit(
            kind=CommitKind.CLUSTER,
            plan_version=snapshot.base.version,
            adds=written,
            removes=taken,
            epoch=snapshot.epoch if epoch is None else epoch,
            info=job_info(job),
        )
        with discarding(store, owner.owner, on=(Conflict, Corruption, Fenced)):  # after others they may be live
            committed = store.base.commit(lambda _: commit)
    reach("roll_up.after_commit")
    store.note_commit(store.base, committed.version)
    return RollUpReport(
        dataset=str(store.name),
        tier=planned.lane,
        period=planned.period,
        files_removed=len(taken),
        files_added=len(written),
        rows=sum(file.rows for file in taken),
        bytes_before=sum(file.size_bytes for file in taken),
        bytes_after=sum(file.size_bytes for file in written),
        seconds=store.clock.monotonic_seconds() - started,
        outputs=outputs,
    )


def _taken(store: Store, snapshot: Snapshot, job: Candidate) -> tuple[DataFile, ...]:
    live = {file.path: file for file in snapshot.base.files}
    gone = [entry.path for entry in job.files if entry.path not in live]
    if gone:
        raise Conflict(
            f"Dataset {store.name}: {gone[0]} is not live any more; another compaction was first. Plan anew."
        )
    return tuple(live[entry.path] for entry in job.files)


def _write(spark: "SparkSession", store: Store, job: Candidate, taken: Sequence[DataFile], folder: str) -> None:
    paths = [str(store.base.path / file.path) for file in taken]
    rows = spark.read.schema(scan_schema(store.base_schema)).parquet(*paths)
    spread = _spread(rows, max(1, job.files_after), store.spec.sort_by)
    options = spark_options(store.base_schema, store.spec.found_by)
    target = str(store.base.path / folder)
    spread.sortWithinPartitions(*store.spec.sort_by).write.options(**options).mode("error").parquet(target)


def _spread(rows: "DataFrame", files: int, order: Sequence[str]) -> "DataFrame":
    """Divide rows into so many parts, of about one size, one after the other in the order."""
    return rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, *order)


def _collected(store: Store, job: Candidate, taken: Sequence[DataFile], folder: str) -> tuple[DataFile, ...]:
    partition = {PERIOD: job.period, **dict(job.partition)}
    found = collect_files(store.base.path, folder, schema=store.base_schema, stats=store.stats)
    rows, expected = sum(file.rows for file in found), sum(file.rows for file in taken)
    if rows != expected:
        check_readable(store, taken)
        raise Corruption(
            f"Dataset {store.name}: the roll-up wrote {rows} rows and should have written {expected}; nothing was committed."
        )
    return tuple(replace(file, partition=partition) for file in found)
