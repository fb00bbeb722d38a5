"""The only test module that uses private names. Each function gives the reason.

A name of a private attribute or function occurs in no other test module (ruff's SLF001 checks attributes). After a change
inside a class, only this module follows.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:
    from subprocess import Popen
    from weakref import WeakKeyDictionary

    import numpy as np
    from pyspark.sql import SparkSession

    from siltstone import Dataset, Lake
    from siltstone.clock import Clock
    from siltstone.compaction.execution.job import Job
    from siltstone.compaction.execution.worker_pool import WorkerPool
    from siltstone.compaction.execution.worker_process import WorkerProcess
    from siltstone.compaction.journal.journal import Journal
    from siltstone.compaction.journal.recovery import Recovery
    from siltstone.compaction.lake_components import LakeComponents
    from siltstone.compaction.operations.dataset_maintenance import DatasetMaintenance
    from siltstone.compaction.operations.merge_small_files import _Input as MergeInput
    from siltstone.compactor.scheduler import Scheduler
    from siltstone.compactor.service import CompactorService
    from siltstone.config import Settings
    from siltstone.coordination.lease_table import LeaseTable
    from siltstone.coordination.leases import Lease, Leases
    from siltstone.coordination.liveness import LivenessLock
    from siltstone.coordination.state_files import StateFiles
    from siltstone.dataset.dataset import _Parts as Parts
    from siltstone.dataset.load.sorted_write import FileRows
    from siltstone.dataset.registry import Registry
    from siltstone.dataset.store import Store
    from siltstone.dataset.write.change_writer import Batch, ChangeWriter
    from siltstone.delta.group_commit import WriterQueue
    from siltstone.delta.group_commit import _Ticket as Ticket
    from siltstone.delta.layout import Layout
    from siltstone.delta.object_store_table import ObjectTable
    from siltstone.delta.read_cache import ReadCache
    from siltstone.delta.table import Table
    from siltstone.demo import Tour
    from siltstone.demo import _Guide as Guide
    from siltstone.eventlog.delta_backend import DeltaBackend
    from siltstone.eventlog.log import EventLog
    from siltstone.eventlog.projection import Projection
    from siltstone.maintenance.service import MaintenanceService
    from siltstone.model.columns import Op
    from siltstone.model.files import DataFile
    from siltstone.model.reports import Ack, LoadReport
    from siltstone.query.hot.cache import HotCache
    from siltstone.query.hot.residents import Residents
    from siltstone.query.result import QueryResult
    from siltstone.query.spark_executor import SparkQuery
    from siltstone.spark.connect_server import ConnectServer
    from siltstone.spark.jvm import Java
    from siltstone.spark.scratch import Scratch
    from siltstone.spark.shared_server import SharedServerHandle
    from siltstone.spark_tasks.merge_files import MergeTask

    Numbers = np.ndarray[Any, np.dtype[Any]]


def _replaced(monkeypatch: pytest.MonkeyPatch, target: object, name: str, made: object) -> Any:  # noqa: ANN401
    """Replace a private name until the test ends, and return the original: the replacement may call it."""
    real = getattr(target, name)
    monkeypatch.setattr(target, name, made)
    return real


# ---- datasets ------------------------------------------------------------------------------------------------------


def store_of(dataset: "Dataset") -> "Store":
    """Return the store of a dataset's current columns: tests read its tables, files and versions."""
    return dataset._store


def parts_of(dataset: "Dataset") -> "Parts":
    """Return the current parts of a handle, also after its columns were altered: tests compare them over time."""
    return dataset._parts


def current_parts(dataset: "Dataset") -> "Parts":
    """Return the writer and loader of a dataset's current columns: tests write rows that the public methods refuse."""
    return dataset._now()


def session_of(dataset: "Dataset") -> "SparkSession":
    """Return the session of a dataset: tests pass it to internal functions."""
    return dataset._spark()


def write_rows(dataset: "Dataset", rows: pa.Table, op: "Op") -> "Ack":
    """Write rows without checking their values, as an earlier version could have."""
    return dataset._now().writer.write_rows(rows, op, producer=None, sequence=None)


def staged_file(writer: "ChangeWriter", rows: pa.Table, relative: str) -> "DataFile":
    """Write a change file without its commit: tests choose the batches of one commit."""
    return writer._stage(rows, relative)


def staged_batch(writer: "ChangeWriter", parts: "Sequence[pa.Table]", batch_id: str) -> "Batch":
    """Write the files of a batch without its commit: tests choose the batches of one commit."""
    return writer._staged(parts, batch_id)


def commit_batches(writer: "ChangeWriter", batches: "Sequence[Batch]") -> "list[Any]":
    """Commit batches as one group: threads would group them by chance."""
    return writer._commit(batches)


def queue_of(writer: "ChangeWriter") -> "WriterQueue[Any, Any]":
    """Return the queue of grouped commits: tests hold it back to make one group."""
    return writer._queue


def cached_reads(reads: "ReadCache") -> "list[tuple[Any, ...]]":
    """Return the keys of the read cache: its evictions are not visible from outside."""
    return list(reads._entries)


def tasks_of(rows: "FileRows") -> "list[Any]":
    """Return the tasks of a load: the division of files among them is not reported."""
    return list(rows._tasks())


def replace_spread(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the first step of a sorted load: tests make Spark's Python workers unfit."""
    from siltstone.dataset.load import sorted_write

    return _replaced(monkeypatch, sorted_write, "_spread", made)


def sample_bounds(sample: "list[tuple[int, pa.Table]]", key: tuple[str, ...], wanted: int) -> pa.Table:
    """Return the bounds of ranges: a pure function whose quality is visible in a whole load only with many rows."""
    from siltstone.dataset.load.sorted_write import _bounds

    return _bounds(sample, key, wanted)


def narrowed(rows: pa.Table, schema: pa.Schema) -> "list[pa.Table]":
    """Return rows in tables of 32-bit offsets: a public read of that much text takes gigabytes."""
    from siltstone.dataset.read.arrow_view import _narrowed

    return _narrowed(rows, schema)


def position_masks(file: "DataFile", rows: "Numbers") -> pa.Table:
    """Return the masks of rows of one file: pure functions below every merged read on Spark."""
    from siltstone.dataset.read.position_masks import _mask_table, _masks

    return _mask_table([(file, *_masks(rows))])


def united_masks(masks: pa.Table, found: pa.Table) -> pa.Table:
    """Return two sets of masks as one: a pure function below every merged read on Spark."""
    from siltstone.dataset.read.position_masks import _united

    return _united(masks, found)


def masks_with_shared_names(masks: pa.Table, files: "Sequence[DataFile]") -> pa.Table:
    """Return masks as they are sent to tasks: that fewer names are sent is not visible in rows."""
    from siltstone.dataset.read.position_masks import _shared_names

    return _shared_names(masks, files)


def outdated_masks(files: "Sequence[DataFile]", latest: pa.Table) -> pa.Table:
    """Return the masks of outdated changes: a pure function below every merged read on Spark."""
    from siltstone.dataset.read.position_masks import _outdated

    return _outdated(files, latest)


# ---- a lake's components -------------------------------------------------------------------------------------------


def stores_of(lake: "Lake") -> "Callable[[str], Store]":
    """Return how a lake opens stores by name: tests build their own runners and journals."""
    return lake._components.store


def compactor_of(lake: "Lake") -> "DatasetMaintenance":
    """Return the operations on datasets: tests build their own runners."""
    return lake._components.operations


def journal_of(lake: "Lake") -> "Journal":
    """Return the journal of cycles: tests read its events and crash it."""
    return lake.maintenance.journal


def recovery_of(lake: "Lake") -> "Recovery":
    """Return the recovery of cycles: tests inspect it without a recovery."""
    return lake.maintenance.recovery


def clock_of(lake: "Lake") -> "Clock":
    """Return the clock of a lake: tests pass it to their own components."""
    return lake._clock


def layout_of(lake: "Lake") -> "Layout":
    """Return the paths of a lake: tests pass them to their own components."""
    return lake._layout


def registry_of(lake: "Lake") -> "Registry":
    """Return the registry of datasets: tests crash it between two steps."""
    return lake._registry


def components_of(lake: "Lake") -> "LakeComponents":
    """Return the components of a lake: tests build their own services."""
    return lake._components


def replace_maintenance(lake: "Lake", service: "MaintenanceService") -> None:
    """Replace the maintenance service of a lake: tests make its cycles last, or record its plans."""
    lake._maintenance = service


def state_files_of(lake: "Lake") -> "StateFiles":
    """Return the state files of a lake: tests simulate another process."""
    return lake._components.state_files


def residents_of(cache: "HotCache") -> "Residents":
    """Return the slots of the hot cache: tests hold a fill back."""
    return cache._residents


def query_session_of(lake: "Lake") -> "SparkSession":
    """Return the session for SQL: tests start its server early, or run statements on it that queries may not."""
    return lake._sessions.for_queries()


def replace_session(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the start of Spark: tests show that no start is needed, or make it slow."""
    from siltstone.spark.lake_sessions import LakeSessions

    return _replaced(monkeypatch, LakeSessions, "_session", made)


# ---- the commit path -----------------------------------------------------------------------------------------------


def replace_entry_writing(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the writing of a log entry: the only moment in which a fault decides about a commit."""
    from siltstone.delta.table import Table

    return _replaced(monkeypatch, Table, "_write_entry", made)


def replace_log_sync(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the sync of a log: a fault after the entry is written."""
    from siltstone.delta.table import Table

    return _replaced(monkeypatch, Table, "_sync_log", made)


def replace_back_off(monkeypatch: pytest.MonkeyPatch, table: "Table", made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the pause between two tries: tests run an action in it."""
    return _replaced(monkeypatch, table, "_back_off", made)


def replace_refresh(monkeypatch: pytest.MonkeyPatch, table: "Table", made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the read of the newest version: tests clean the log right after it."""
    return _replaced(monkeypatch, table, "_refresh", made)


def waiting_in(queue: "WriterQueue[Any, Any]") -> "Sequence[Any]":
    """Return the waiting batches; tests wait for a number of them."""
    return queue._waiting


@contextmanager
def without_leader(queue: "WriterQueue[Any, Any]") -> Iterator[None]:
    """Commit no batch until the block ends: then all waiting batches are one group."""
    with queue._mutex:
        assert not queue._is_led
        queue._is_led = True
    try:
        yield
    finally:
        with queue._mutex:
            queue._hand_over()


def new_tickets(count: int) -> "list[Ticket[int, str]]":
    """Return places in a queue: tests wake and release them in a chosen order."""
    from siltstone.delta.group_commit import _Ticket

    return [_Ticket(number) for number in range(count)]


def leave_queue(queue: "WriterQueue[int, str]", ticket: "Ticket[int, str]") -> None:
    """Remove a batch as an interrupted caller does: a signal does not arrive at a chosen moment."""
    queue._leave(ticket, leads=False)


def report_round(queue: "WriterQueue[int, str]", group: "list[Ticket[int, str]]", own: "Ticket[int, str]") -> None:
    """Wake the callers of a round: the order of threads would be random."""
    queue._publish(group, own)


def replace_checkpoint_crc(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the computation of a checkpoint's checksum: tests delay it."""
    from siltstone.delta import checkpoint_checksums

    return _replaced(monkeypatch, checkpoint_checksums, "_crc", made)


def replace_log_opening(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the function that reads a whole log: tests count its calls."""
    from siltstone.delta import table_reader

    return _replaced(monkeypatch, table_reader, "_opened", made)


# ---- event logs ----------------------------------------------------------------------------------------------------


def delta_backend_of(log: "EventLog") -> "DeltaBackend":
    """Return the backend of an event log on Delta: a query of the log would project its events."""
    from siltstone.eventlog.delta_backend import DeltaBackend

    assert isinstance(log._backend, DeltaBackend)
    return log._backend


def projection_of(backend: "DeltaBackend") -> "Projection":
    """Return the SQLite side of an event log on Delta: tests read its backlog."""
    return backend._projection


def keep_up(backend: "DeltaBackend") -> object:
    """Run the work of the background thread: tests have no thread to wait for."""
    return backend._keep_up()


def wait_with(backend: "DeltaBackend", closing: Event) -> None:
    """Replace the event that the background waits for: tests append during its waits."""
    backend._is_closing = closing


def count_append(backend: "DeltaBackend") -> None:
    """Count a group of appends: the background waits until no more arrive."""
    backend._groups += 1


def stop_background(monkeypatch: pytest.MonkeyPatch, backend: "DeltaBackend") -> None:
    """Start no background work: tests run it themselves."""
    monkeypatch.setattr(backend._background, "start", lambda *_: False)


def replace_apply(monkeypatch: pytest.MonkeyPatch, projection: "Projection", made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the function that applies events to SQLite: tests append right after it."""
    return _replaced(monkeypatch, projection, "_apply", made)


def objects_of(log: "EventLog") -> Any:  # noqa: ANN401
    """Return the objects of an event log in an object store: tests make single requests fail."""
    return delta_backend_of(log)._table._objects  # type: ignore[attr-defined]


def table_objects(table: "ObjectTable") -> Any:  # noqa: ANN401
    """Return the objects of a table in an object store: tests leave some objects behind."""
    return table._objects


def checkpoint_objects(table: "ObjectTable") -> str | None:
    """Write a checkpoint and clean the log: tests do not wait for the background."""
    return table._checkpoint_and_sweep()


def replace_squash_writing(monkeypatch: pytest.MonkeyPatch, made: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Replace the writing of the files of a squash: tests commit at the same time."""
    from siltstone.eventlog import compaction

    return _replaced(monkeypatch, compaction, "_write_merged", made)


# ---- leases, liveness locks -----------------------------------------------------------------------------------------


def liveness_lock_of(holder: Any) -> "LivenessLock":  # noqa: ANN401
    """Return the lock of a lease or request: tests release it as a crash does."""
    lock: LivenessLock = holder._liveness_lock
    return lock


def release_liveness_lock(lock: "LivenessLock") -> None:
    """Release the lock and keep its file, as a killed process does."""
    assert lock._handle is not None
    fcntl.flock(lock._handle, fcntl.LOCK_UN)
    os.close(lock._handle)
    lock._handle = None


def lease_of(scheduler: "Scheduler") -> "Lease":
    """Return the lease of a scheduler: tests end it as a crash does."""
    assert scheduler._lease is not None
    return scheduler._lease


def lease_table_of(leases: "Leases | Lease") -> "LeaseTable":
    """Return the table of leases: tests write rows of another machine, or make it fail."""
    return leases._table


def replace_interrupt(service: "CompactorService", made: Callable[[], None]) -> None:
    """Replace the function that interrupts Spark: tests have no Spark."""
    service._interrupt = made


# ---- jobs and workers ----------------------------------------------------------------------------------------------


def use_pool(lake: "Lake", pool: "WorkerPool") -> None:
    """Use this pool for a lake's jobs: its workers run the tests' command."""
    lake.maintenance._pool = pool


def pool_of(lake: "Lake") -> "WorkerPool":
    """Return a lake's pool: tests inspect its workers."""
    assert lake.maintenance._pool is not None
    return lake.maintenance._pool


def idle_workers(pool: "WorkerPool") -> "list[WorkerProcess]":
    """Return the idle workers, to read and to change: one warm worker serves many tests."""
    return pool._idle


def busy_workers(pool: "WorkerPool") -> "Mapping[str, WorkerProcess]":
    """Return the busy workers by job: tests kill them."""
    return pool._at_work


def taken_worker(pool: "WorkerPool", job: "Job") -> "WorkerProcess":
    """Return a worker for a job: tests use its protocol directly."""
    return pool._take(job)


def process_of(worker: "WorkerProcess") -> "Popen[str]":
    """Return the process of a worker: tests kill it, or write to it."""
    return worker._process


def server_process(server: "ConnectServer") -> "Popen[bytes]":
    """Return the process of a Connect server: tests kill it."""
    return server._process


def scratch_of(worker: "WorkerProcess") -> Path:
    """Return the folder of a worker's scratch files: it must be deleted afterwards."""
    return worker._scratch


def settings_of(worker: "WorkerProcess") -> "Settings":
    """Return the settings that a worker gets: tests use its protocol directly."""
    return worker._settings


def journal_liveness_lock(journal: "Journal") -> "LivenessLock":
    """Return the liveness lock of a running cycle: tests end it as a crash does."""
    assert journal._running is not None
    assert journal._running.liveness_lock is not None
    return journal._running.liveness_lock


def merge_input(store: "Store", file: "DataFile", first: str) -> "MergeInput":
    """Return the facts about a file before small files are merged: the division needs no Spark."""
    from siltstone.compaction.operations.merge_small_files import _read_input

    return _read_input(store, file, first)


def divided_tasks(inputs: "Sequence[MergeInput]", files: int) -> "list[MergeTask] | None":
    """Return the division of a merge of small files: a pure function below Spark."""
    from siltstone.compaction.operations.merge_small_files import _divided

    return _divided(inputs, files)


# ---- Spark ---------------------------------------------------------------------------------------------------------


def own_jvms() -> "list[int]":
    """Return the JVM of this process's classic session: it has no public id."""
    from siltstone.spark import session

    return session._jvm_pids


def replace_own_jvms(monkeypatch: pytest.MonkeyPatch, pids: "list[int]") -> Any:  # noqa: ANN401
    """Make a process the JVM of this process: tests end it."""
    from siltstone.spark import session

    return _replaced(monkeypatch, session, "_jvm_pids", pids)


def own_scratch() -> "Scratch":
    """Return the scratch folder of this process's JVM: other users must not read it."""
    from siltstone.spark import session

    return session._scratch[0]


def server_scratch(server: "ConnectServer") -> "Scratch":
    """Return the scratch folder of a Connect server: other users must not read it."""
    return server._scratch


def members() -> "WeakKeyDictionary[SparkSession, SharedServerHandle]":
    """Return the handles of shared servers: tests have sessions without a server."""
    from siltstone.spark import session

    return session._server_handles


def require_listener(address: str) -> None:
    """Check that a Connect server listens: otherwise a session would be started."""
    from siltstone.spark.session import _require_listener

    _require_listener(address)


def class_archive(java: "Java", settings: "Settings", *, role: str) -> "list[str]":
    """Return the options for a class archive: a JVM would record one only as it exits."""
    from siltstone.spark.launch_options import _archive, _jars

    return _archive(java, role=role, jars=_jars(settings))


def delete_old_archives(folder: Path, *, now_seconds: float) -> None:
    """Remove old class archives: a JVM would have to start for that."""
    from siltstone.spark.jvm import _delete_old_archives

    _delete_old_archives(folder, now_seconds=now_seconds)


def interruptible_query(query: "SparkQuery", session: "SparkSession") -> AbstractContextManager[None]:
    """Monitor the Spark work of a block as a query does: tests have sessions without a server."""
    return query._interruptible(session)


# ---- the command line ----------------------------------------------------------------------------------------------


def run_once(service: "CompactorService") -> int:
    """Run one cycle as `silt compactor run --once` does: tests end it while it runs."""
    from siltstone.cli.commands.compactor import _once, _StopSignals

    return _once(service, _StopSignals())


def load_created(lake: "Lake", made: "Dataset", source: Path) -> "LoadReport":
    """Load a file into a dataset that `silt create` has just created: tests make the load fail."""
    from siltstone.cli.commands.datasets import _load_created

    return _load_created(lake, made, source)


def demo_guide(report: Callable[..., None], clock: "Clock") -> "Guide":
    """Return the object that reports the steps of the demo: tests run one step."""
    from siltstone.demo import _Guide

    return _Guide(report, clock)


def demo_query(guide: "Guide", lake: "Lake", title: str, query: str) -> "QueryResult":
    """Run one query of the demo: the whole demo takes minutes."""
    from siltstone.demo import _run_query

    return _run_query(guide, lake, title, query)


def demo_write(guide: "Guide", lake: "Lake", tour: "Tour", people: "Dataset") -> None:
    """Run the writes of the demo, which need no Spark."""
    from siltstone.demo import _write

    _write(guide, lake, tour, people)


def run_exit_handlers() -> None:
    """Run Python's exit handlers: a process that was forked ends without them."""
    import atexit

    atexit._run_exitfuncs()
