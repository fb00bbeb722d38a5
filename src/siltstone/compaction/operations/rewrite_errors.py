"""Errors of jobs that write files before they commit: their translation, and the removal of the written files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from siltstone.compaction.failures import UnreadableFiles, names_file
from siltstone.compaction.operations.unreadable_files import check_readable
from siltstone.dataset.read.time_travel import all_there
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.delta.layout import DATA
from siltstone.errors import Conflict, Corruption, Reason, Unavailable
from siltstone.model.files import DataFile
from siltstone.spark.errors import error_line, is_away, is_missing_file, spark_errors
from siltstone.spark.output_files import discard
from siltstone.spark.session import ended_out_of_memory


@contextmanager
def discarding(store: Store, owner: str, *, on: tuple[type[BaseException], ...] = (BaseException,)) -> Iterator[None]:
    """Create the folder of a job's output, and delete it on these errors.

    It is created here because Spark does not report clearly a missing permission or a full disk.
    """
    path = store.base.path / DATA / owner
    try:
        store.base.make_folder(f"{DATA}/{owner}")
    except OSError as error:
        raise Unavailable(
            f"Dataset {store.name}: {path} cannot be written ({error}); nothing was changed. "
            "Check the disk and its permissions."
        ) from error
    try:
        yield
    except on:
        discard(store.base.path, f"{DATA}/{owner}")
        raise


@contextmanager
def disk_failures(store: Store) -> Iterator[None]:
    """Convert errors of the disk, from before a commit, to Unavailable with the dataset's name.

    Missing files and connections to a JVM that ended are left to `spark_failures`.
    """
    try:
        yield
    except (FileNotFoundError, ConnectionError):
        raise
    except OSError as error:
        raise Unavailable(
            f"Dataset {store.name}: a file could not be read or written ({error}); nothing was changed. Check the disk."
        ) from error


@contextmanager
def spark_failures(
    store: Store, snapshot: Snapshot, *, suspects: Sequence[DataFile] = (), changes: Sequence[DataFile] = ()
) -> Iterator[None]:
    """Translate errors of Spark and of missing files, from before a commit.

    The error names the unreadable files among the `suspects`, which are files of base, and the `changes`.

    Raises:
        Gone: the dataset was dropped.
        Conflict: files of the plan are gone.
        UnreadableFiles: files cannot be read.
        Unavailable: Spark failed.
    """
    gone = (
        f"Dataset {store.name}: files of the plan are gone; another compaction was first. "
        "The dataset's rows were not changed. Plan again."
    )
    try:
        try:
            yield
        except spark_errors() as error:
            if is_missing_file(error) and not (  # if this process sees them all, Spark's tasks see another disk
                all_there(store.base, snapshot.base.files) and all_there(store.changes, snapshot.unfolded)
            ):
                raise Conflict(gone) from error
            text, reason = error_line(error), None
            if not is_away(error):
                named = [file for file in snapshot.base.files if names_file(error, file.path)]
                check_readable(store, suspects or named, changes=changes, error=error)
            elif ended_out_of_memory():
                text, reason = "its JVM has ended with an OutOfMemoryError.", Reason.MEMORY
            else:
                reason = Reason.SPARK_LOST
            raise Unavailable(
                f"Dataset {store.name}: the work failed in Spark: {text} Nothing was changed.", reason=reason
            ) from error
        except Corruption as error:
            if changes and not isinstance(error, UnreadableFiles):
                check_readable(store, (), changes=changes, error=error)
            raise
    except (Conflict, Corruption, Unavailable, FileNotFoundError) as error:
        store.base.check_there()  # a drop explains every one of them
        if isinstance(error, FileNotFoundError):
            raise Conflict(gone) from error
        raise
