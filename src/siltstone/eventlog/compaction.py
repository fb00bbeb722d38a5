"""Merges small files of an event log on Delta. Every append adds one file, and every reader of the table pays for each.

`model.small_runs` selects the files, for two callers. A log merges its files in the background while appends arrive.
The planner of a lake does the same for the lake's own log, as an ordinary job. Every row keeps its own index in `idx`,
so any files can be merged, in any order.

One commit removes the files and adds the new ones. It moves rows only: followers skip it, and concurrent appends do not
conflict with it. A crash before the commit leaves files that no log names. After the commit the sweep deletes the
replaced files, after one hour at the earliest. Readers may still use them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.coordination.liveness import LivenessLock
from siltstone.delta.layout import DATA
from siltstone.delta.parquet import write_file
from siltstone.delta.table import Table
from siltstone.errors import Conflict, Corruption, Gone, Unavailable
from siltstone.eventlog.arrow_rows import DAY, FIRST_INDEX, IDX, stats_of, with_indexes
from siltstone.failpoints import reach
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.small_runs import small_event_files
from siltstone.spark_tasks.parquet_checksums import open_parquet

LIVENESS_FOLDER: Final = "_live"
"""Folder of a log's table with the liveness locks of its writers."""
KEY: Final = ("build_request_id", "event_id")
_NONE: Final[Mapping[str, pa.Table]] = {}


def squash(table: Table, *, clock: Clock, many: int, recent: Mapping[str, pa.Table] = _NONE) -> int:
    """Merge small files if there are at least `many`; return by how many the number of files fell.

    Files whose rows are in `recent`, by their paths, are not read again. Raises as `squash_files` does.
    """
    pinned = table.pin()
    run = small_event_files(pinned.files, day_of, many=many)
    if not run.enough:
        return 0
    merged = squash_files(table, pinned.version, run.files, clock=clock, recent=recent)
    return len(run.files) - len(merged)


def day_of(file: DataFile) -> str | None:
    """Return the day whose events a file holds."""
    return file.partition[DAY]


def squash_files(
    table: Table,
    version: int,
    files: Sequence[DataFile],
    *,
    clock: Clock,
    recent: Mapping[str, pa.Table] = _NONE,
) -> list[DataFile]:
    """Merge exactly these files of a version; return the files that replace them.

    Raises:
        Conflict: another process was first; nothing was changed.
        Unavailable: the disk refused; nothing was changed.
    """
    owner = clock.new_id()
    try:
        with LivenessLock(table.path / LIVENESS_FOLDER, owner):
            written = _write_merged(table, files, owner, recent)
            reach("eventlog.after_squash_write")
            commit = Commit(kind=CommitKind.SQUASH, plan_version=version, adds=tuple(written), removes=tuple(files))
            table.commit(lambda _: commit)
    except (Conflict, Corruption, Gone, Unavailable, OSError, pa.ArrowException) as error:
        for path in (table.path / DATA).glob(f"{owner}.*.parquet"):  # the commit certainly did not land
            path.unlink(missing_ok=True)
        if isinstance(error, FileNotFoundError):
            raise Conflict(
                f"{table.label}: another process merged these files first. Nothing was changed. Plan again."
            ) from error
        if isinstance(error, (OSError, pa.ArrowException)):
            raise Unavailable(f"{table.label}: its files cannot be merged ({error}). They are unchanged.") from error
        raise
    reach("eventlog.after_squash")
    return written


def _write_merged(
    table: Table, files: Sequence[DataFile], owner: str, recent: Mapping[str, pa.Table]
) -> list[DataFile]:
    """Write the events of the files, one file per day, in the order of their indexes."""
    days: dict[str | None, list[DataFile]] = {}
    for file in files:
        days.setdefault(day_of(file), []).append(file)
    merged: list[DataFile] = []
    for number, (day, of_day) in enumerate(days.items()):
        parts = [_rows(table, file, recent) for file in of_day]
        rows = pa.concat_tables(parts, promote_options="default").sort_by([(IDX, "ascending")])
        # The columns in the table's order and types, because files differ in the columns they have.
        names = set(rows.column_names)
        schema = pa.schema([field for field in table.schema() if field.name in names])
        rows = rows.select(schema.names).cast(schema)
        path = f"{DATA}/{owner}.{number}.parquet"
        write_file(rows, table.path / path, key=KEY)
        size = (table.path / path).stat().st_size
        file = DataFile(
            path=path,
            size_bytes=size,
            rows=rows.num_rows,
            partition={DAY: day, FIRST_INDEX: None},
            stats=stats_of(rows.num_rows),
        )
        table.verify((file,), expected=rows.schema)
        merged.append(file)
    return merged


def _rows(table: Table, file: DataFile, recent: Mapping[str, pa.Table]) -> pa.Table:
    first = file.partition.get(FIRST_INDEX)
    rows = recent.get(file.path)
    if rows is None:
        with open_parquet(table.path / file.path, pre_buffer=False) as opened:
            rows = opened.read(use_threads=False)
    return with_indexes(rows, first_index=None if first is None else int(first))
