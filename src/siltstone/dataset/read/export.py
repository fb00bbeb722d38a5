"""Exports: the merged view of one snapshot, written by Spark's executors into a folder outside the lake.

Flow, with T the target and W = ``.T.<owner>.export`` beside it (``.T.<owner>.live`` is locked while the owner lives):

1. Spark writes ``W/data``. Its side files are deleted, every Parquet footer is read back, and rows must equal the
   count;
2. for a Delta table, ``W`` becomes one. Version 0 has the user's columns, and one commit of the commit path adds the
   files;
3. a marker lists every file of the export, and all is synced;
4. with `overwrite`, the old T is renamed to ``.T.<owner>.old``;
5. W (or its data) is renamed to T: this is the commit of the export. Then the renamed old T is deleted.

A crash before 5 leaves no T, or the old one, and a hidden folder beside it. Between 4 and 5 the old one is that hidden
folder. The next export to T deletes such folders of dead owners, after its own step 5.

`overwrite` replaces only an export: T must have the marker, and no file that the marker does not list.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.coordination.liveness import LivenessLock, is_live, remove_dead
from siltstone.dataset.read.merged_view import view_frame
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.checkpoints import Retention
from siltstone.delta.fsync import sync_directory, sync_file
from siltstone.delta.layout import DATA, local_folder
from siltstone.delta.parquet import data_file
from siltstone.delta.table import LOCK_FILE, Table
from siltstone.errors import Conflict, Corruption, InvalidRequest, Unavailable
from siltstone.failpoints import reach
from siltstone.model.commit import Commit, CommitKind
from siltstone.model.files import DataFile
from siltstone.model.numbers import whole_number
from siltstone.model.reports import ExportReport
from siltstone.model.schema import type_name
from siltstone.spark.errors import damage, error_line, is_missing_file, spark_errors
from siltstone.spark.output_files import write_frame, writer_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CSV_OPTIONS: Final = {
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""CSV options that preserve quotes, blanks and microseconds. Null is an empty field, empty text is ``""``."""
MAX_FILES: Final = 100_000
MARKER: Final = ".siltstone-export.json"
"""Name of the file that lists an export's files. Engines and shells skip names that begin with a dot."""
_SIDE: Final = re.compile(r"\.(?P<name>.+)\.(?P<owner>[0-9a-f]{32})\.(export|old|live)\Z")


class ExportFormat(StrEnum):
    """Formats of an export."""

    PARQUET = "parquet"
    CSV = "csv"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One validated export request."""

    target: Path
    format: ExportFormat
    raw: bool = False
    files: int | None = None
    overwrite: bool = False


def check_export(
    store: Store, target: str | Path, *, format_name: str, raw: bool, files: int | None, overwrite: bool
) -> Export:
    """Validate an export request: the format, the number of files, the target. Nothing is written."""
    try:
        chosen = ExportFormat(format_name)
    except ValueError as error:
        formats = ", ".join(ExportFormat)
        raise InvalidRequest(f"An export is one of {formats}, not {format_name!r}.") from error
    if files is not None:
        files = whole_number("files", files, least=1, most=MAX_FILES)
    for field in store.schema if chosen is ExportFormat.CSV else ():
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            raise InvalidRequest(
                f"Column {field.name!r} is of type {type_name(field.type)}, which CSV cannot hold. Export Parquet or Delta."
            )
    path = local_folder(target, what="Export target")
    _check_place(path, store.layout.root)
    _check_replaceable(path, overwrite=overwrite)
    return Export(target=path, format=chosen, raw=raw, files=files, overwrite=overwrite)


def _check_place(path: Path, lake: Path) -> None:
    """Reject a target inside the lake, which would mix with its files, or around the lake, which would replace it."""
    real, root = path.resolve(), lake.resolve()
    if real == root or root in real.parents or real in root.parents:
        raise InvalidRequest(f"Export target {path} must be outside of the lake {lake}.")
    if path.is_symlink():
        raise InvalidRequest(f"Export target {path} is a link. Name the folder itself.")
    if not path.name:
        raise InvalidRequest(f"Export target {path} has no name.")


def _check_replaceable(path: Path, *, overwrite: bool) -> None:
    """Accept a target that is missing or empty, or, with `overwrite`, holds nothing but an export."""
    content = sorted(path.iterdir()) if path.is_dir() else []
    if content and not overwrite:
        raise InvalidRequest(
            f"Export target {path} is not empty. Name another folder, or pass overwrite (--overwrite)."
        )
    if not content:
        return
    listed = _marked_files(path)
    if listed is None:
        raise InvalidRequest(
            f"Export target {path} has no list of files that an export wrote ({MARKER}); it is not overwritten. Delete the "
            "folder yourself, or name another one."
        )
    for inner in _inside(path):
        if inner not in listed:
            raise InvalidRequest(
                f"Export target {path} holds {inner!r}, which no export wrote; it is not overwritten. Delete it yourself, or "
                "name another folder."
            )


def _marked_files(folder: Path) -> set[str] | None:
    """Return the files that the marker of an export lists, including the marker; None if there is no marker."""
    marker = folder / MARKER
    try:
        if marker.is_symlink():
            return None
        return {MARKER, *map(str, json.loads(marker.read_text())["files"])}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _inside(folder: Path) -> Iterator[str]:
    """List every file, link and empty folder below a folder, by relative path. No link is followed."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        empty = [] if folders or names else [""]
        for name in (*names, *links, *empty):
            yield (here / name).relative_to(folder).as_posix()


def export_snapshot(spark: "SparkSession", store: Store, snapshot: Snapshot, export: Export) -> ExportReport:
    """Write the snapshot's merged view to the target.

    Raises:
        FileNotFoundError: files of the snapshot are gone.
        Conflict: another file or folder took the target's name meanwhile.
        Unavailable: Spark or the disk failed. The target is unchanged.
    """
    started = store.clock.monotonic_seconds()
    owner = store.clock.new_id()
    with _liveness_lock(export.target, owner):
        work = _side(export.target, owner, "export")
        try:
            rows, files = _write_files(spark, store, snapshot, export, work)
            ready = work / DATA
            if export.format is ExportFormat.DELTA:
                ready = work
                _commit(store, snapshot, work, files)
                reach("export.after_commit")
            # Without the marker no later export replaces this one.
            marker = {"dataset": str(store.name), "format": export.format.value, "sequence": snapshot.sequence}
            (ready / MARKER).write_text(json.dumps(marker | {"files": sorted(_inside(ready))}))
            reach("export.after_marker")
            if store.settings.durable:
                _sync(ready)
            _put_in_place(ready, export, owner)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        reach("export.after_rename")
        if store.settings.durable:
            sync_directory(export.target.parent)
        shutil.rmtree(work, ignore_errors=True)
    _sweep(export.target)
    return ExportReport(
        dataset=str(store.name),
        path=str(export.target),
        format=export.format.value,
        sequence=snapshot.sequence,
        rows=rows,
        files=len(files),
        bytes=sum(file.size_bytes for file in files),
        seconds=store.clock.monotonic_seconds() - started,
    )


def _liveness_lock(target: Path, owner: str) -> LivenessLock:
    """Acquire a liveness lock beside the target, because an export only reads the lake."""
    try:
        return LivenessLock(target.parent, _side(target, owner, "live").name)
    except OSError as error:
        raise Unavailable(
            f"{target.parent} cannot be written ({error}); nothing was exported. Check the disk and its permissions."
        ) from error


def _side(target: Path, owner: str, end: str) -> Path:
    return target.with_name(f".{target.name}.{owner}.{end}")


def _write_files(
    spark: "SparkSession", store: Store, snapshot: Snapshot, export: Export, work: Path
) -> tuple[int, tuple[DataFile, ...]]:
    """Write the files on the executors; return the number of rows written, and the files."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    with _spark_failures(store):
        work.mkdir()
        frame = view_frame(spark, store, snapshot, raw=export.raw, once=True)
        if export.files is not None:
            frame = frame.repartition(export.files)
        frame = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
        if export.format is ExportFormat.CSV:
            with writer_settings(frame.sparkSession):
                frame.write.options(**CSV_OPTIONS).mode("error").csv(str(work / DATA))
        else:
            write_frame(frame, work, DATA, schema=store.schema, key=store.spec.found_by)
        reach("export.after_write")
        rows = int(seen.get["rows"] or 0)
        files = _collect_files(store, export, work)
    counted = sum(file.rows for file in files)
    if export.format is not ExportFormat.CSV and counted != rows:
        raise Corruption(
            f"Dataset {store.name}: Spark counted {rows} rows and wrote {counted}. Nothing was exported. Check the disk."
        )
    return rows, files


@contextlib.contextmanager
def _spark_failures(store: Store) -> Iterator[None]:
    """Convert Spark's errors to ours. The caller handles a missing file of the snapshot."""
    try:
        yield
    except spark_errors() as error:
        if is_missing_file(error):
            raise FileNotFoundError(error_line(error)) from error
        if damaged := damage(error):
            raise damaged from error
        raise Unavailable(
            f"Dataset {store.name}: the export failed in Spark: {error_line(error)} Nothing was exported."
        ) from error


def _collect_files(store: Store, export: Export, work: Path) -> tuple[DataFile, ...]:
    """Describe the files; delete side files and empty ones. One remains to show the columns of an empty export."""
    folder = work / DATA
    if not folder.is_dir():
        raise Unavailable(
            f"Spark wrote nothing that is visible at {folder}. Driver and executors must share that disk."
        )
    files: list[DataFile] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif export.format is ExportFormat.CSV:
            files.append(DataFile(path=path.name, size_bytes=path.stat().st_size, rows=0))
        else:
            files.append(data_file(work, f"{DATA}/{path.name}", expected=store.schema, stats=store.stats))
    if export.format is ExportFormat.CSV:
        return tuple(files)
    full = [file for file in files if file.rows]
    exported = full or (files[:1] if export.format is ExportFormat.PARQUET else [])
    for file in files:
        if file not in exported:
            (work / file.path).unlink()
    return tuple(exported)


def _commit(store: Store, snapshot: Snapshot, work: Path, files: tuple[DataFile, ...]) -> None:
    """Make a Delta table of the files. Any Delta reader can read it without Siltstone."""
    Table.create(work, store.schema, partition_by=[], properties={}, durable=store.settings.durable)
    table = Table(
        work,
        settings=store.settings,
        clock=store.clock,
        retention=Retention(hours=store.settings.base_retention_hours),
        label=f"Export of {store.name}",
    )
    info = {"siltstone.dataset": str(store.name), "siltstone.sequence": str(snapshot.sequence)}
    table.commit(lambda parent: Commit(kind=CommitKind.EXPORT, plan_version=parent.version, adds=files, info=info))
    (work / LOCK_FILE).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    for place, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(place) / name)
        sync_directory(Path(place))


def _put_in_place(ready: Path, export: Export, owner: str) -> None:
    """Rename the export to its target. The replaced export is renamed first, and restored on failure."""
    target, replaced = export.target, _side(export.target, owner, "old")
    reach("export.before_rename")
    _check_replaceable(target, overwrite=export.overwrite)  # it may have been filled while Spark wrote
    replaces = target.is_dir() and any(target.iterdir())
    try:
        if replaces:
            target.rename(replaced)
            reach("export.after_aside")
        ready.rename(target)
    except OSError as error:
        if replaces and not target.exists():
            replaced.rename(target)
        if not replaces and target.is_dir() and any(target.iterdir()):
            raise Conflict(
                f"Export target {target} was filled by another process meanwhile; nothing was exported. "
                "Export to another path."
            ) from error
        raise Unavailable(
            f"Export target {target} cannot be written ({error}); nothing was exported. Check the disk and its permissions."
        ) from error
    if replaces:
        shutil.rmtree(replaced, ignore_errors=True)


def _sweep(target: Path) -> None:
    """Delete folders that crashed exports left beside this target. Failed deletions are left to the next export."""
    with contextlib.suppress(OSError, Unavailable):
        sides = [side for path in target.parent.iterdir() if (side := _SIDE.match(path.name))]
        for owner in {side["owner"] for side in sides if side["name"] == target.name}:
            lock = _side(target, owner, "live")
            # Without the lock file there is no proof that we made the folders.
            if lock.is_file() and not is_live(target.parent, lock.name):
                shutil.rmtree(_side(target, owner, "export"), ignore_errors=True)
                shutil.rmtree(_side(target, owner, "old"), ignore_errors=True)
                remove_dead(lock)
