"""An exact rewrite: replaces planned files of a log's base by other files with the same rows.

Used by roll-ups and clusterings.

Flow of a job (the planner has chosen its files, see `planning`):

1. plan: the files must be live. A file that is not live any more makes the job invalid, and the caller plans again.
2. run: exactly these files are read, and their rows are written into a folder that no log names. Unreadable files are
   named, and the job can be repeated without them.
3. verify: every footer is read back, and the number of rows must be the same. The hash of each file is computed.
4. commit: removes exactly the planned files and adds the new ones. Rows only move, so readers and followers can ignore
   it.

The fold's watermark does not change. A crash before 4 leaves files of a dead owner, which the sweep deletes. The last
folder of a file's path names its writer: ``tier-daily``, ``cluster``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from siltstone.compaction.operations.commit import job_info
from siltstone.compaction.operations.rewrite_errors import discarding, disk_failures, spark_failures
from siltstone.compaction.operations.unreadable_files import check_readable
from siltstone.compaction.planning.model import CLUSTERED, JobKind, JobSpec
from siltstone.dataset.snapshot import check_columns
from siltstone.dataset.store import Store
from siltstone.errors import Conflict, Corruption, Fenced, Gone
from siltstone.failpoints import reach
from siltstone.model.columns import PERIOD
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.reports import RollUpReport
from siltstone.spark.output_files import attempt_folder, collect_files, manifest, writer_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIER_FOLDER: Final = "tier-"
"""Prefix of the folder of a tier's files, before the name of the tier. Spark takes ``name=value`` for a column."""

Write = Callable[[Sequence[DataFile], str], list[str] | None]
"""Writes the rows of files into a folder. Returns the names of the valid files; None means all in the folder."""


def tier_of(path: str) -> str:
    """Return the tier that wrote a file of base, ``cluster`` for a clustering; empty for any other writer.

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
    spec: JobSpec,
    write: Write,
    *,
    mark: str,
    epoch: int | None = None,
    job: str = "",
) -> RollUpReport:
    """Run one planned rewrite.

    `mark` is the folder of its files, `job` its id in the log. Its kind names its fail points.

    Raises:
        Conflict: files of the plan are not live any more, or another compaction was first. Nothing was changed.
        UnreadableFiles: some of the files cannot be read. Nothing was changed. The job can be repeated without them.
        Corruption: the written rows differ from the rows read. Nothing was changed.
    """
    started = store.clock.monotonic_seconds()
    snapshot = store.snapshot()
    live = {file.path: file for file in snapshot.base.files}
    if gone := [entry.path for entry in spec.files if entry.path not in live]:
        raise Conflict(f"Dataset {store.name}: {gone[0]} is no longer live; another compaction was first. Plan again.")
    taken = tuple(live[entry.path] for entry in spec.files)
    check_columns(store, snapshot)
    clusters = spec.kind is JobKind.CLUSTER
    with spark_failures(store, snapshot, suspects=taken), writer_settings(spark), store.liveness_lock() as owner:
        folder = f"{attempt_folder(owner.owner, 0)}/{mark}"
        with discarding(store, owner.owner), disk_failures(store):
            try:
                names = write(taken, folder)
            except Corruption as error:  # name all unreadable files
                check_readable(store, taken, error=error)
                raise
            reach("cluster.after_write") if clusters else reach("roll_up.after_write")
            written = _verified(store, spec, taken, folder, names)
            outputs = manifest(store.base.path, written)
        commit = Commit(
            kind=CommitKind.CLUSTER if clusters else CommitKind.ROLL_UP,
            plan_version=snapshot.base.version,
            adds=written,
            removes=taken,
            epoch=snapshot.epoch if epoch is None else epoch,
            info=job_info(job),
        )
        # After other errors than these the files may be live.
        with discarding(store, owner.owner, on=(Conflict, Corruption, Fenced, Gone)):
            committed = store.base.commit(lambda _: commit)
    reach("cluster.after_commit") if clusters else reach("roll_up.after_commit")
    store.note_commit(store.base, committed.version)
    return RollUpReport(
        dataset=str(store.name),
        tier=spec.lane,
        period=spec.period,
        files_removed=len(taken),
        files_added=len(written),
        rows=sum(file.rows for file in taken),
        bytes_before=sum(file.size_bytes for file in taken),
        bytes_after=sum(file.size_bytes for file in written),
        seconds=store.clock.monotonic_seconds() - started,
        outputs=outputs,
    )


def _verified(
    store: Store, job: JobSpec, taken: Sequence[DataFile], folder: str, names: list[str] | None
) -> tuple[DataFile, ...]:
    partition = {PERIOD: job.period, **dict(job.partition)}
    files = collect_files(store.base.path, folder, schema=store.base_schema, stats=store.stats, names=names)
    rows, expected = sum(file.rows for file in files), sum(file.rows for file in taken)
    if rows != expected:
        check_readable(store, taken)
        raise Corruption(
            f"Dataset {store.name}: the {job.lane} job wrote {rows} rows and should have written {expected}; nothing was "
            "committed. Check the disk, and run the job again."
        )
    return tuple(replace(file, partition=partition) for file in files)
