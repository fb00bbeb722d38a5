"""An exact rewrite: planned files of a log's base become other files with the same rows. What roll-ups and clusterings share.

Flow of a job (the planner has chosen its files, see `planning`):

1. plan: the files must be live; a file that is not any more makes the job void: plan anew;
2. run: exactly these files are read and their rows are written anew, into a folder that no log names. Those that cannot be
   read are named, and the job can be done without them;
3. verify: every footer is read back, as many rows must be there as were taken, and the hash of each file is taken;
4. commit: removes exactly the planned files and adds the new ones. Rows only move: readers and followers need not look.

The fold's watermark is left alone. A crash before 4 leaves files of a dead owner, which the sweep takes. The last folder of a
file's path says who wrote it: ``tier-daily``, ``cluster``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from siltstone.compaction.operations.commit import job_info
from siltstone.compaction.operations.rewrite_errors import discarding, disk_failures, spark_failures
from siltstone.compaction.operations.unreadable_files import check_readable
from siltstone.compaction.planning.model import CLUSTERED, JobKind, JobSpec
from siltstone.dataset.snapshot import Snapshot, check_columns
from siltstone.dataset.store import Store
from siltstone.errors import Conflict, Corruption, Fenced
from siltstone.failpoints import reach
from siltstone.model.columns import PERIOD
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import RollUpReport
from siltstone.spark.output_files import attempt_folder, collect_files, house_settings, manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIER_FOLDER: Final = "tier-"
"""Before a tier's name, the folder of the files that it wrote. Spark takes ``name=value`` for a column."""

Write = Callable[[Sequence[DataFile], str], list[str] | None]
"""Writes the rows of files into a folder; says the names of the files that count, None for all that lie there."""


def tier_of(path: str) -> str:
    """Return which tier wrote a file of base, ``cluster`` for a clustering; empty if none did.

    >>> tier_of("data/abc/0/tier-daily/part-00000.parquet"), tier_of("data/abc/0/part-00000.parquet")
    ('daily', '')
    >>> tier_of("data/abc/0/cluster/part-00000.parquet")
    'cluster'
    """
    folder = path.split("/")[-2] if "/" in path else ""
    if folder == CLUSTERED:
        return CLUSTERED
    return folder.removeprefix(TIER_FOLDER) if folder.startswith(TIER_FOLDER) else ""


def rewrite(
    spark: "SparkSession",
    store: Store,
    planned: JobSpec,
    write: Write,
    *,
    mark: str,
    epoch: int | None = None,
    job: str = "",
) -> RollUpReport:
    """Do one planned rewrite; `mark` is the folder of its files, its kind the name of its fail points, `job` its name in the log.

    Raises:
        Conflict: files of the plan are not live any more, or another compaction was first. Nothing was changed.
        UnreadableFiles: some of the files cannot be read. Nothing was changed; the job can be done without them.
        Corruption: what was written is not what was taken. Nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    taken = _taken(store, snapshot, planned)
    check_columns(store, snapshot)
    clusters = planned.kind is JobKind.CLUSTER
    with spark_failures(store, snapshot, suspects=taken), house_settings(spark), store.presence() as owner:
        folder = f"{attempt_folder(owner.owner, 0)}/{mark}"
        with discarding(store, owner.owner), disk_failures(store):
            names = _written(store, taken, lambda: write(taken, folder))
            reach("cluster.after_write") if clusters else reach("roll_up.after_write")
            written = _collected(store, planned, taken, folder, names)
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
    reach("cluster.after_commit") if clusters else reach("roll_up.after_commit")
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


def _taken(store: Store, snapshot: Snapshot, job: JobSpec) -> tuple[DataFile, ...]:
    live = {file.path: file for file in snapshot.base.files}
    gone = [entry.path for entry in job.files if entry.path not in live]
    if gone:
        raise Conflict(
            f"Dataset {store.name}: {gone[0]} is not live any more; another compaction was first. Plan anew."
        )
    return tuple(live[entry.path] for entry in job.files)


def _written(store: Store, taken: Sequence[DataFile], write: Callable[[], list[str] | None]) -> list[str] | None:
    """Write; if that meets a file that cannot be read, all of those are named."""
    try:
        return write()
    except Corruption as error:
        check_readable(store, taken, error=error)
        raise


def _collected(
    store: Store, job: JobSpec, taken: Sequence[DataFile], folder: str, names: list[str] | None
) -> tuple[DataFile, ...]:
    partition = {PERIOD: job.period, **dict(job.partition)}
    found = collect_files(store.base.path, folder, schema=store.base_schema, stats=store.stats, names=names)
    rows, expected = sum(file.rows for file in found), sum(file.rows for file in taken)
    if rows != expected:
        check_readable(store, taken)
        raise Corruption(
            f"Dataset {store.name}: the {job.lane} job wrote {rows} rows and should have written {expected}; nothing was "
            "committed."
        )
    return tuple(replace(file, partition=partition) for file in found)
