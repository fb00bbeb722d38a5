"""The registry: the current incarnation and specification of each name.

The registry is a table of named rows (`delta.named_rows`). ``n`` counts the events of a name; it is the number of the
app transaction "dataset/<name>".

* create: make a fresh incarnation folder with its marker and both tables, then one registry commit decides the winner.
  A loser removes its folder and compares specifications with the winner.
* drop: one registry commit, then a mark on both tables so that open handles get Gone. Then the folder is swept, and
  those above it if they are empty.

A crash between those steps leaves a folder that the registry does not name (create) or no longer names (drop). Reads
and writes are correct at every point, and `sweep` removes what is left.
"""

import contextlib
import datetime
import difflib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.config import Settings
from siltstone.coordination.liveness import LivenessLock
from siltstone.dataset.dataset_folder import (
    DROPPED_ENDING,
    INCARNATION,
    Marker,
    dataset_folders,
    missing_tables,
    remove_folder,
    remove_incarnation,
    write_marker,
)
from siltstone.dataset.lake_folder import no_lake, refuse_foreign_folder, unwritable
from siltstone.dataset.store import PurgeListeners, Store
from siltstone.delta.fsync import sync_directory
from siltstone.delta.layout import BASE, CHANGES, DATA, Layout
from siltstone.delta.named_rows import NamedRowTable
from siltstone.delta.parquet import READ_ERRORS
from siltstone.delta.read_cache import ReadCache
from siltstone.delta.table import Table, TableVersion
from siltstone.errors import Conflict, Corruption, Gone, InvalidRequest, NotFound, Reason, SiltstoneError, Unavailable
from siltstone.failpoints import reach
from siltstone.host.system_errors import read_failure
from siltstone.model.columns import PERIOD, SEQ
from siltstone.model.commit import CommitKind
from siltstone.model.files import DataFile
from siltstone.model.names import DatasetName
from siltstone.model.schema import (
    base_schema,
    canonical,
    change_schema,
    check_dedup,
    check_key,
    check_log,
    check_order,
    differences,
    fingerprint,
    own_columns,
)
from siltstone.model.spec import MOST_CLUSTER_COLUMNS, PROPERTY_DROPPED, Spec, as_names
from siltstone.spark_tasks.parquet_checksums import open_parquet

CREATE_TRIES: Final = 20
READ_THREADS: Final = 4
"""Threads that read the registry's files, one file for each dataset."""
MOST_COMPARED: Final = 10_000
"""Most names that a missing name is compared with, to bound the time of an error."""
MOST_COMPARED_PAIRS: Final = 10_000_000
"""Most pairs of characters that are compared: a comparison takes time by the square of a name's length."""
MOST_SIMILAR: Final = 10
"""Most similar names that are looked up, because some of them may be dropped or damaged."""
FOLDER_TRIES: Final = 100
"""Tries to create a folder that a drop removes between two system calls. After this many tries a file is in the way."""
APP_DATASET: Final = "dataset/"
_ROW: Final = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("incarnation", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("spec", pa.string(), nullable=False),
        pa.field("schema", pa.binary(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
LIVE: Final = "live"
DROPPED: Final = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One row of the registry: the current meaning of a name.

    `schema` are the columns at creation, where a store starts. The current columns are those of base (`Store.current`).
    """

    name: DatasetName
    n: int
    incarnation: str
    state: str
    spec: Spec
    schema: pa.Schema
    at: datetime.datetime
    is_new: bool = field(default=False, compare=False)
    """True in the result of the `create` that made it; not stored."""

    @property
    def is_live(self) -> bool:
        """False once the dataset was dropped."""
        return self.state == LIVE


class Registry:
    """Creates, finds, lists and drops datasets."""

    def __init__(
        self,
        layout: Layout,
        *,
        settings: Settings,
        clock: Clock,
        after_commit: Callable[[Table, int], None],
        after_write: Callable[[Store, int], None],
        reads: ReadCache,
        purge_listeners: PurgeListeners | None = None,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._after_commit = after_commit
        self._after_write = after_write
        self._reads = reads
        self._purge_listeners = purge_listeners or PurgeListeners()
        self._cached_rows: dict[str, Registration] = {}
        """Rows of the registry by their file, which never changes."""
        self._table = NamedRowTable(
            layout.registry,
            _ROW,
            CommitKind.REGISTER,
            settings=settings,
            clock=clock,
            label=f"The registry of lake {layout.root}",
        )

    def find(self, name: DatasetName) -> Registration:
        """Return the current registration of a name (else NotFound) whose tables are on disk (else Corruption)."""
        self.require_lake()
        row = self._find(name)
        if error := self.broken(row):
            raise error
        return row

    def _find(self, name: DatasetName) -> Registration:
        row = self._lookup(name)
        if row is None or not row.is_live:
            similar = self._similar(name)
            meant = f"Did you mean {similar}? " if similar else ""
            raise NotFound(
                f"There is no dataset {name} in lake {self._layout.root}. {meant}silt list shows what there is."
            )
        return row

    def _similar(self, name: DatasetName) -> DatasetName | None:
        """Return the live dataset whose name is most like this one, if one is. Rows that cannot be read are left out."""
        text = str(name)
        names: list[str] = []
        with contextlib.suppress(SiltstoneError, OSError):
            names = [file.partition["name"] or "" for file in self._table.pin().files]
        schema = text.rpartition(".")[0]
        names.sort(key=lambda other: other.rpartition(".")[0] != schema)
        most = min(MOST_COMPARED, MOST_COMPARED_PAIRS // len(text) ** 2)
        for near in difflib.get_close_matches(text, names[:most], n=MOST_SIMILAR):
            with contextlib.suppress(SiltstoneError, OSError):
                row = self._lookup(DatasetName.parse(near))
                if row is not None and row.is_live:
                    return row.name
        return None

    def broken(self, row: Registration) -> Corruption | None:
        """Return an error if tables of a live dataset are missing; None if they exist, or it was dropped meanwhile."""
        folder = self._layout.dataset(row.name, row.incarnation)
        missing = missing_tables(folder)
        if not missing or self._lookup(row.name) != row:
            return None
        what = " and ".join(missing)
        return Corruption(
            f"Dataset {row.name}: the registry names it, but {what} of {folder} cannot be found. Restore the folder from a "
            f"backup, or remove the dataset with silt drop {row.name}.",
            reason=Reason.MISSING_FILE,
        )

    def require_lake(self) -> None:
        """Raise NotFound if there is no lake, or it has never had a dataset."""
        if not self._layout.is_lake():
            raise no_lake(self._layout)

    def version(self) -> int:
        """Return the newest version of the registry. While it stays the same, no name changes its meaning."""
        self.require_lake()
        return self._table.version()

    def names(self) -> list[str]:
        """Return the names of all live datasets."""
        return [str(row.name) for row in self.all()]

    def all(self) -> list[Registration]:
        """Return every live dataset, by name."""
        if not self._layout.is_lake():
            return []
        return sorted((row for row in self.rows() if row.is_live), key=lambda row: row.name)

    def rows(self) -> list[Registration]:
        """Return the current row of every name, dropped ones included."""
        return self.pin()[1]

    def pin(self) -> tuple[TableVersion, list[Registration]]:
        """Return the registry's newest version, and its row of every name."""
        pinned = self._table.pin()
        rows = {file.path: row for file in pinned.files if (row := self._cached_rows.get(file.path)) is not None}
        unread = [file for file in pinned.files if file.path not in rows]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            rows |= zip((file.path for file in unread), pool.map(self._read, unread), strict=True)
        self._cached_rows = rows
        return pinned, [rows[file.path] for file in pinned.files]

    def needed_files(self) -> set[str]:
        """Return the files of the registry that a reader may need: live ones, and those replaced within the retention."""
        live = {file.path for file in self._table.pin().files}
        hours = max(self._settings.vacuum_floor_hours, self._table.retention.hours)
        return live | self._table.removed(within_hours=hours)

    def _lookup(self, name: DatasetName) -> Registration | None:
        if not self._layout.is_lake():
            return None
        live = self._table.live_file(self._table.pin().files, str(name))
        return None if live is None else self._cached_rows.get(live.path) or self._read(live)

    def _read(self, file: DataFile) -> Registration:
        path = self._layout.registry / file.path
        try:
            with open_parquet(path, pre_buffer=False) as opened:
                row = opened.read(use_threads=False).to_pylist()[0]  # for one row threads cost more than they save
        except READ_ERRORS as error:
            raise read_failure(path, error) from error
        except IndexError as error:
            raise Corruption(f"The registry's file {path} has no row. Restore it from a copy.") from error
        try:
            if not INCARNATION.match(row["incarnation"]):
                raise Corruption(
                    f"The registry's file {path} names the folder {row['incarnation']!r}, which is not a valid incarnation. "
                    "Restore it from a copy that you trust."
                )
            return Registration(
                name=DatasetName.parse(file.partition["name"] or ""),
                n=row["n"],
                incarnation=row["incarnation"],
                state=row["state"],
                spec=Spec.from_json(row["spec"]),
                schema=pa.ipc.read_schema(pa.py_buffer(row["schema"])),
                at=row["at"],
            )
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
            raise Corruption(
                f"The registry's file {path} is not a valid row ({error!r}). Restore it from a copy."
            ) from error

    def store(self, row: Registration) -> Store:
        """Return the storage behind a registration."""
        return Store(
            name=row.name,
            incarnation=row.incarnation,
            spec=row.spec,
            schema=row.schema,
            layout=self._layout,
            settings=self._settings,
            clock=self._clock,
            after_commit=self._after_commit,
            after_write=self._after_write,
            reads=self._reads,
            purge_listeners=self._purge_listeners,
        )

    def create(self, name: DatasetName, schema: pa.Schema, spec: Spec) -> Registration:
        """Create the dataset, or return an existing one with the same schema and specification.

        Raises:
            InvalidRequest: the schema or the specification is not allowed.
            Conflict: a dataset of that name exists with another fingerprint or specification.
            Corruption: the files of the existing one are missing, or files of that name exist that are not registered.
        """
        # The key columns, and the time of a log, are not nullable, whatever the given schema has.
        required = set(spec.required)
        schema = pa.schema([f.with_nullable(False) if f.name in required else f for f in canonical(schema)])  # noqa: FBT003
        _check_spec(schema, spec)
        for _ in range(CREATE_TRIES):
            with contextlib.suppress(Gone):  # the existing one was dropped during the comparison
                return self._create(name, schema, spec)
        raise Unavailable(f"Dataset {name} keeps being dropped and created by other processes. Try again later.")

    def _create(self, name: DatasetName, schema: pa.Schema, spec: Spec) -> Registration:
        existing = self._lookup(name)
        if existing is not None and existing.is_live:
            return self._same_or_conflict(existing, schema, spec)
        self._check_unregistered(name)
        if existing is not None:
            # finish a crashed drop first: stale handles must be Gone before the name is live again
            self.remove_dropped(existing)
        self._ensure_table()
        incarnation = self._clock.new_id()
        folder = self._layout.dataset(name, incarnation)
        with self._liveness_lock(incarnation):
            self._make_tables(folder, Marker(dataset=str(name), incarnation=incarnation), schema, spec)
            try:
                return replace(self._register(name, incarnation, schema, spec), is_new=True)
            except Conflict:
                remove_folder(folder)
        return self._same_or_conflict(self.find(name), schema, spec)

    def _check_unregistered(self, name: DatasetName) -> None:
        """Refuse to create beside a folder of that name with data: a restored registry may have lost its row."""
        folders = dataset_folders(self._layout, name)
        row = self._lookup(name) if folders else None  # after `folders`: what was registered meanwhile is named here
        for folder in folders:
            if row is None or row.incarnation != folder.name:
                raise Corruption(
                    f"Dataset {name}: {folder} holds committed data, and the registry does not name it. Nothing was created. "
                    "Run silt doctor --repair to register it again, or move the folder out of the lake."
                )

    def adopt(self, name: DatasetName, incarnation: str, schema: pa.Schema, spec: Spec) -> Registration:
        """Register an incarnation whose tables are on disk, in a new registry if it was lost. A live name is a Conflict."""
        self._ensure_table(is_ours=True)
        return self._register(name, incarnation, schema, spec)

    def _same_or_conflict(self, existing: Registration, schema: pa.Schema, spec: Spec) -> Registration:
        """Compare with the current dataset. Its columns are those of base, which may have been altered since."""
        if error := self.broken(existing):
            raise error
        current = own_columns(self.store(existing).base.columns())
        if spec == existing.spec and fingerprint(schema) == fingerprint(current):
            return existing
        raise _conflict(existing, current, schema, spec)

    def _ensure_table(self, *, is_ours: bool = False) -> None:
        """Create the registry of a new lake. Of several processes one creates it and all continue."""
        if self._layout.is_lake():
            return
        if not is_ours:
            refuse_foreign_folder(self._layout)
        try:
            self._table.create_empty()
        except Conflict:
            return
        except OSError as error:
            raise unwritable(self._layout, error) from error

    def _make_tables(self, folder: Path, marker: Marker, schema: pa.Schema, spec: Spec) -> None:
        """Create the marker and both tables. No reader finds them until the registry names them."""
        reach("create.before_tables")
        base_columns = base_schema(schema, is_log=spec.is_log)
        if spec.is_log:  # in the Delta log, not in the files
            base_columns = pa.schema([*base_columns, pa.field(PERIOD, pa.string())])
        expiring = {"delta.setTransactionRetentionDuration": "interval 1 days"}  # for forgotten marks alone
        settings = self._settings

        def make(table: str, columns: pa.Schema, partition_by: list[str], *, hours: float) -> None:
            properties = spec.to_properties(role=table) | retention_properties(hours) | expiring
            path, durable = folder / table, settings.durable
            Table.create(path, columns, partition_by=partition_by, properties=properties, durable=durable)

        try:
            make_folder(folder)
            if settings.durable:
                sync_directory(self._layout.root)  # it names the catalog, which may be new
            write_marker(folder, marker, durable=settings.durable)
            reach("create.after_marker")
            change_columns = pa.schema([pa.field(SEQ, pa.int64()), *change_schema(schema, spec.key)])
            make(CHANGES, change_columns, [SEQ], hours=settings.changes_retention_hours)
            reach("create.after_changes")
            partition_by = [PERIOD, *spec.partition_by] if spec.is_log else []
            make(BASE, base_columns, partition_by, hours=settings.base_retention_hours)
        except OSError as error:
            remove_folder(folder)
            raise unwritable(self._layout, error) from error
        reach("create.after_base")

    def _register(self, name: DatasetName, incarnation: str, schema: pa.Schema, spec: Spec) -> Registration:
        before = self._lookup(name)
        if before is not None and before.is_live:
            raise Conflict(f"Dataset {name} exists. Nothing was changed. Open it, or drop it first.")
        row = Registration(
            name=name,
            n=before.n + 1 if before else 1,
            incarnation=incarnation,
            state=LIVE,
            spec=spec,
            schema=schema,
            at=self._clock.now(),
        )
        self._write(row, before)
        reach("create.after_registry")
        return row

    def _write(self, row: Registration, before: Registration | None) -> None:
        """Commit one row; refused if the name's row has changed since `before` was read."""

        def check(n: int, _live: DataFile | None) -> None:
            if n != (before.n if before else 0):
                raise Conflict(
                    f"Dataset {row.name} was created or dropped by another process meanwhile. Nothing was changed. Try again."
                )

        owner = self._clock.new_id()
        with self._liveness_lock(owner):  # until the log names its file, the liveness lock protects it from the sweep
            values = {
                "n": row.n,
                "incarnation": row.incarnation,
                "state": row.state,
                "spec": row.spec.to_json(),
                "schema": row.schema.serialize().to_pybytes(),
                "at": row.at,
            }
            file = self._table.stage(str(row.name), values, owner=owner)
            committed = self._table.replace_row(file, f"{APP_DATASET}{row.name}", row.n, check=check)
            self._after_commit(self._table, committed.version)

    def _liveness_lock(self, owner: str) -> LivenessLock:
        """Acquire the liveness lock of an owner of staged files."""
        try:
            return LivenessLock(self._layout.liveness, owner)
        except OSError as error:
            raise unwritable(self._layout, error) from error

    def drop_unused(self, row: Registration) -> bool:
        """Drop an incarnation that `create` made for this caller, if nothing was committed since; return whether."""
        store = self.store(row)
        with contextlib.suppress(Gone, NotFound, Conflict):  # another process has dropped it
            is_unused = row.is_new and store.changes.is_untouched() and store.base.is_untouched()
            if is_unused and self._find(row.name).incarnation == row.incarnation:
                return bool(self.drop(row.name))
        return False

    def drop(self, name: DatasetName) -> Registration:
        """Drop the dataset: the registry first, then the marks that make open handles raise Gone, then the files.

        A crash after the first step leaves a dataset that no lookup finds. The next create or sweep deletes its files.
        A dataset whose files are missing is dropped, too.

        Raises:
            NotFound: no such dataset, or no lake.
            InvalidRequest: its folder, or a table in it, is behind a symbolic link. Nothing was changed.
            Unavailable: it was dropped, but its files cannot be deleted.
        """
        self.require_lake()
        before = self._find(name)
        try:
            folder = self._layout.dataset(name, before.incarnation)
            inside = (folder / BASE / DATA, folder / CHANGES / DATA)
            link = next(filter(None, map(self._layout.link_in, inside)), None)
        except OSError as error:
            raise unwritable(self._layout, error) from error
        if link is not None:
            raise InvalidRequest(
                f"Dataset {name} is behind the symbolic link {link}, and Siltstone deletes nothing behind links. Nothing was "
                "changed. Replace the link by a folder or a mount point, and drop it again."
            )
        self._write(replace(before, n=before.n + 1, state=DROPPED, at=self._clock.now()), before)
        reach("drop.after_registry")
        self.remove_dropped(before)
        return before

    def remove_dropped(self, dropped: Registration) -> None:
        """Mark both tables of a dropped incarnation and remove its folder; safe to repeat."""
        store = self.store(dropped)
        for table in (store.changes, store.base):
            with contextlib.suppress(SiltstoneError):  # already marked, or already removed: both are fine
                table.set_properties({PROPERTY_DROPPED: dropped.incarnation})
        reach("drop.after_marks")
        store.forget()
        if self._layout.link_in(store.path):
            return  # files behind a link are not ours to delete
        if store.path.is_dir():
            remove_incarnation(store.path, dropped.name, ending=DROPPED_ENDING)
        remove_empty_parents(store.path, self._layout)


def remove_empty_parents(folder: Path, layout: Layout) -> None:
    """Remove the folders of table, schema and catalog above a removed incarnation, as far as they are empty.

    A concurrent create tries again until its incarnation's folder exists. From then on no folder above it is empty.
    """
    with contextlib.suppress(OSError):  # not empty, or already gone
        for parent in takewhile(lambda parent: parent != layout.root, folder.parents):
            parent.rmdir()


def make_folder(folder: Path) -> None:
    """Create the folder of an incarnation and those above it, which a drop may remove while they are still empty."""
    for attempt in range(1, FOLDER_TRIES + 1):
        try:
            folder.mkdir(parents=True)
        except (FileNotFoundError, FileExistsError):
            if attempt == FOLDER_TRIES:
                raise
        else:
            return


def retention_properties(hours: float) -> dict[str, str]:
    """Return the Delta properties that state how long this table retains history."""
    text = f"interval {max(1, round(hours * 60))} minutes"
    return {"delta.logRetentionDuration": text, "delta.deletedFileRetentionDuration": text}


def _check_spec(schema: pa.Schema, spec: Spec) -> None:
    if spec.time is not None:
        check_log(schema, time=spec.time, subject=spec.subject, partition_by=spec.partition_by, sort_by=spec.sort_by)
        check_order(schema, spec.cluster_by, most=MOST_CLUSTER_COLUMNS)
        check_dedup(schema, spec.dedup_by, needed=(spec.time, *spec.partition_by, *spec.subject))
        return
    check_key(schema, spec.key)
    for name in spec.subject:
        if name not in schema.names:
            raise InvalidRequest(f"Subject column {name!r} is not in the schema ({', '.join(schema.names)}).")


def _conflict(existing: Registration, current: pa.Schema, schema: pa.Schema, spec: Spec) -> Conflict:
    keys = {*spec.required, *existing.spec.required}  # nullability follows from the key and is not compared again
    columns = differences(_nullable(current, keys), _nullable(schema, keys))
    kinds = [] if spec.kind is existing.spec.kind else [f"it is a {existing.spec.kind} dataset, not a {spec.kind} one"]
    others = kinds + [
        f"its {what} is {', '.join(theirs) or 'nothing'}, not {', '.join(ours) or 'nothing'}"
        for what, theirs, ours in (
            ("key", existing.spec.key, spec.key),
            ("subject", existing.spec.subject, spec.subject),
            ("time", as_names(existing.spec.time), as_names(spec.time)),
            ("partition", existing.spec.partition_by, spec.partition_by),
            ("sort order", existing.spec.sort_by, spec.sort_by),
            ("clustering", existing.spec.cluster_by, spec.cluster_by),
            ("dedup", existing.spec.dedup_by, spec.dedup_by),
            ("survivor", as_names(existing.spec.survivor), as_names(spec.survivor)),
        )
        if theirs != ours
    ]
    return Conflict(
        f"Dataset {existing.name} exists with another {'schema' if columns else 'specification'}: "
        f"{'; '.join([*columns, *others])}. Choose another name, or drop it first."
    )


def _nullable(schema: pa.Schema, names: set[str]) -> pa.Schema:
    return pa.schema([f.with_nullable(True) if f.name in names else f for f in schema])  # noqa: FBT003
