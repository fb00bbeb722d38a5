"""Finds and names inputs that cannot be read, so that a job can run without them. Nothing is moved or deleted.

The footer shows whether a file is complete Parquet, with the log's rows and the dataset's columns. Damage inside is
found only by reading the whole file. So the file that the error names is read to its end, or all files if it names
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from siltstone.compaction.failures import Failure, UnreadableFiles, classify, evidence_of, names_file
from siltstone.dataset.store import Store
from siltstone.delta.parquet import READ_ERRORS, column_differences
from siltstone.errors import Corruption, Reason, SiltstoneError, Unavailable, first_line
from siltstone.host.system_errors import read_failure
from siltstone.model.files import DataFile
from siltstone.spark.errors import is_cancelled
from siltstone.spark_tasks.parquet_checksums import batches, open_parquet

SHOWN: Final = 5
"""Highest number of files that a message names. The result of the job names them all."""
BATCH_ROWS: Final = 8192
_SUSPICIOUS: Final = frozenset({Failure.UNKNOWN, Failure.CORRUPT_INPUT})
"""Failures that an unreadable file may have caused."""


def check_readable(
    store: Store, files: Sequence[DataFile], *, changes: Sequence[DataFile] = (), error: Exception | None = None
) -> None:
    """Check the footers of base and change files. Read the files that an `error` names to their end.

    Raise UnreadableFiles if some cannot be read, FileNotFoundError if one is gone.
    """
    inputs = _table_files(store, files, changes)
    reasons = _reasons(inputs, error)
    # Python workers report no paths: a file may have caused the error although it names none
    if not reasons and error is not None and not is_cancelled(error) and classify(evidence_of(error)) in _SUSPICIOUS:
        reasons = _reasons(inputs, error, whole=True)
    if not reasons:
        return
    named = [f"{path} ({reason})" for path, reason in sorted(reasons.items())[:SHOWN]]
    more = f" and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    raise UnreadableFiles(
        f"Dataset {store.name}: {', '.join(named)}{more} cannot be read. Nothing was changed; the files stay in place. Restore "
        "them from a copy.",
        reasons,
    )


def unreadable_files(
    store: Store, files: Sequence[DataFile], *, changes: Sequence[DataFile] = (), error: Exception | None = None
) -> dict[str, SiltstoneError]:
    """Return the errors of files of base and of changes, by their paths below the dataset's folder.

    Missing files are included. Footers are checked. Files that the `error` names are read to their end. A file with
    Unavailable may be sound.
    """
    errors: dict[str, SiltstoneError] = {}
    for table_file in _table_files(store, files, changes):
        path = f"{table_file.root.name}/{table_file.file.path}"
        try:
            if reason := _reason(table_file, whole=table_file.is_named_by(error)):
                errors[path] = Corruption(reason, reason=Reason.DAMAGED_FILE)
        except FileNotFoundError:
            errors[path] = Corruption("it is missing", reason=Reason.MISSING_FILE)
        except Unavailable as refused:
            errors[path] = Unavailable(f"not damaged, but out of reach: {refused}", reason=refused.reason)
    return errors


@dataclass(frozen=True, slots=True)
class _TableFile:
    """A file of a table, and its expected columns. A file from before a change of columns may lack some."""

    root: Path
    file: DataFile
    schema: pa.Schema

    def is_named_by(self, error: Exception | None) -> bool:
        """True if an error names the file."""
        return error is not None and names_file(error, self.file.path)


def _table_files(store: Store, base: Sequence[DataFile], changes: Sequence[DataFile]) -> list[_TableFile]:
    return [
        *(_TableFile(store.base.path, file, store.base_schema) for file in base),
        *(_TableFile(store.changes.path, file, store.change_schema) for file in changes),
    ]


def _reasons(files: Sequence[_TableFile], error: Exception | None, *, whole: bool = False) -> dict[str, str]:
    """Return why files cannot be read. Those that the error names, or all with `whole`, are read to their end."""
    reasons = {item.file.path: _reason(item, whole=whole or item.is_named_by(error)) for item in files}
    return {path: reason for path, reason in reasons.items() if reason}


def _reason(table_file: _TableFile, *, whole: bool) -> str:
    """Return the reason why a file cannot be read; empty if it can. Raise if the system refuses to read it."""
    try:
        with open_parquet(f"{table_file.root}/{table_file.file.path}", indexes=True) as parquet:
            if parquet.metadata.num_rows != table_file.file.rows:
                return f"{parquet.metadata.num_rows} rows, not {table_file.file.rows}"
            if columns := column_differences(parquet.schema_arrow, table_file.schema, exact=False):
                return columns
            if whole:
                for _ in batches(parquet, BATCH_ROWS, use_threads=False):
                    continue
    except FileNotFoundError:
        raise
    except READ_ERRORS as error:
        refused = read_failure(table_file.root / table_file.file.path, error)
        if isinstance(refused, Unavailable):
            raise refused from error
        return first_line(error)
    return ""
