"""Inputs that cannot be read: found and named, so that a job can be done without them. Nothing is moved or deleted here.

A footer tells at once whether a file is Parquet, whole and of the rows that the log says. Damage inside is met only by whoever
reads all of it: Spark names the file it stumbled over, and that one is read through here to be sure.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.compaction.failures import UnreadableFiles
from siltstone.dataset.store import Store
from siltstone.model.files import DataFile

SHOWN: Final = 5
"""So many files are named in a message; the result of the job names them all."""
BATCH_ROWS: Final = 8192


def check_readable(store: Store, files: Sequence[DataFile], *, said: str = "") -> None:
    """Look at the footers of files of base, and read through those that Spark `said` something about.

    Raises:
        UnreadableFiles: some cannot be read.
        FileNotFoundError: one is gone; it is not broken.
    """
    found = {file.path: reason for file in files if (reason := _reason(store.base.path / file.path, file, said))}
    if not found:
        return
    named = [f"{path} ({reason})" for path, reason in sorted(found.items())[:SHOWN]]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise UnreadableFiles(
        f"Dataset {store.name}: {', '.join(named)}{more} cannot be read. Nothing was changed; the files stay in place. Restore "
        "them from a copy.",
        found,
    )


def _reason(path: Path, file: DataFile, said: str) -> str:
    """Return what is wrong with a file; empty if nothing is."""
    try:
        with pq.ParquetFile(path) as parquet:
            if parquet.metadata.num_rows != file.rows:
                return f"{parquet.metadata.num_rows} rows, not {file.rows}"
            if path.name in said:
                for _ in parquet.iter_batches(BATCH_ROWS, use_threads=False):
                    continue
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return ""
