"""Files of Spark's executors: written into a folder that no log names, then listed, cleaned of side files, verified.

A folder belongs to one attempt of one owner (``data/<owner>/<attempt>/``). So a zombie task of another attempt can
never add a file to it. Spark's ``.crc`` and ``_SUCCESS`` files are removed. They contain checksums of rows that may
have to be erased, and no reader needs them.
"""

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.delta.layout import DATA
from siltstone.delta.parquet import data_file, spark_options
from siltstone.errors import Corruption, Unavailable
from siltstone.model.files import DataFile
from siltstone.model.reports import OutputFile
from siltstone.spark_tasks.parquet_checksums import add_checksums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITER_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Required settings: INT96 timestamps would be wrong, and a silently skipped file would lose rows."""


@dataclass(slots=True)
class _Override:
    """Old values of a session's settings, and the number of threads that need ours."""

    users: int = 0
    before: dict[str, str | None] = field(default_factory=dict)


_OVERRIDES: Final[dict[int, _Override]] = {}
_OVERRIDES_MUTEX: Final = threading.Lock()


def attempt_folder(owner: str, attempt: int) -> str:
    """Return the folder of one attempt, below a table."""
    return f"{DATA}/{owner}/{attempt}"


def write_frame(frame: "DataFrame", root: Path, folder: str, *, schema: pa.Schema, key: Sequence[str]) -> None:
    """Make Spark write the frame into the folder as Parquet in Siltstone's layout."""
    with writer_settings(frame.sparkSession):
        frame.write.options(**spark_options(schema, key)).mode("error").parquet(str(root / folder))


@contextlib.contextmanager
def writer_settings(spark: "SparkSession") -> Iterator[None]:
    """Apply the settings required for correct files while a session of the user writes.

    Several threads may write through one session. The first one sets them, the last one restores the old values.
    """
    with _OVERRIDES_MUTEX:
        override = _OVERRIDES.setdefault(id(spark), _Override())
        if not override.users:
            current = {name: spark.conf.get(name, None) for name in WRITER_SETTINGS}
            override.before = {name: value for name, value in current.items() if value != WRITER_SETTINGS[name]}
            for name in override.before:
                spark.conf.set(name, WRITER_SETTINGS[name])
        override.users += 1
    try:
        yield
    finally:
        with _OVERRIDES_MUTEX:
            override.users -= 1
            if not override.users:
                del _OVERRIDES[id(spark)]
                for name, value in override.before.items():
                    spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def collect_files(
    root: Path, folder: str, *, schema: pa.Schema, stats: Sequence[str], names: Collection[str] | None = None
) -> tuple[DataFile, ...]:
    """List the written files, delete side files and empty files, and describe the others for a commit.

    With `names`, only these count. Other files were left by a task that Spark retried.

    Raises:
        Unavailable: the folder is not visible here, because the executors wrote to another machine's disk.
        Corruption: a file cannot be read back or has other columns.
    """
    path = root / folder
    if not path.is_dir():
        raise Unavailable(
            f"Spark wrote no files that are visible at {path}. Driver and executors must share the lake's disk."
        )
    files: list[DataFile] = []
    for written in sorted(path.iterdir()):
        if written.name.startswith((".", "_")) or (names is not None and written.name not in names):
            shutil.rmtree(written) if written.is_dir() else written.unlink()
            continue
        add_checksums(written)
        file = data_file(root, f"{folder}/{written.name}", expected=schema, stats=stats)
        if file.rows:
            files.append(file)
        else:
            written.unlink()
    if names is not None and len(files) != len(names):
        raise Corruption(f"Expected {len(names)} files in {path}, found {len(files)}; nothing was committed.")
    return tuple(files)


def manifest(root: Path, files: Sequence[DataFile]) -> tuple[OutputFile, ...]:
    """Return the files with the SHA-256 of each, as they are before a commit names them.

    Raises:
        Corruption: a file no longer has the size from when its footer was read.
    """
    outputs: list[OutputFile] = []
    for file in files:
        with (root / file.path).open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
        if size != file.size_bytes:
            raise Corruption(
                f"File {root / file.path} has {size} bytes, not {file.size_bytes} as before; nothing was committed."
            )
        outputs.append(OutputFile(path=file.path, rows=file.rows, bytes=size, sha256=digest))
    return tuple(outputs)


def discard(root: Path, folder: str) -> None:
    """Delete the uncommitted files of an attempt."""
    shutil.rmtree(root / folder, ignore_errors=True)
