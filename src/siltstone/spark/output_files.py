"""Files that Spark's executors write: into a folder no log names yet, then listed, cleaned of side files and verified.

A folder belongs to one attempt of one owner (``data/<owner>/<attempt>/``), so that a zombie task of another attempt can
never add a file to it. Spark's ``.crc`` and ``_SUCCESS`` files are removed: they keep checksums of what may have to be
forgotten, and no reader needs them.
"""

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
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

HOUSE_SETTINGS: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""INT96 timestamps are wrong here, and a file that is skipped in silence is a loss of rows."""


def attempt_folder(owner: str, attempt: int) -> str:
    """Return the folder of one attempt, below a table."""
    return f"{DATA}/{owner}/{attempt}"


def write_frame(frame: "DataFrame", root: Path, folder: str, *, schema: pa.Schema, key: Sequence[str]) -> None:
    """Let Spark write the frame into the folder as Parquet in the house's layout."""
    with house_settings(frame.sparkSession):
        frame.write.options(**spark_options(schema, key)).mode("error").parquet(str(root / folder))


@contextlib.contextmanager
def house_settings(spark: "SparkSession") -> Iterator[None]:
    """Hold the settings that decide about right and wrong while a session that is not ours writes.

    Several threads may write through one session: the first one in sets them, the last one out sets them back.
    """
    with _HELD_MUTEX:
        held = _HELD.setdefault(id(spark), _Held(spark))
        if not held.users:
            held.take_over()
        held.users += 1
    try:
        yield
    finally:
        with _HELD_MUTEX:
            held.users -= 1
            if not held.users:
                del _HELD[id(spark)]
                held.give_back()


class _Held:
    """A session whose settings are ours for now."""

    def __init__(self, spark: "SparkSession") -> None:
        self.users = 0
        self._spark = spark
        self._before: dict[str, str | None] = {}

    def take_over(self) -> None:
        conf = self._spark.conf
        found = {name: conf.get(name, None) for name in HOUSE_SETTINGS}
        self._before = {name: value for name, value in found.items() if value != HOUSE_SETTINGS[name]}
        for name in self._before:
            conf.set(name, HOUSE_SETTINGS[name])

    def give_back(self) -> None:
        for name, old in self._before.items():
            if old is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, old)


_HELD: Final[dict[int, _Held]] = {}
_HELD_MUTEX: Final = threading.Lock()


def collect_files(
    root: Path, folder: str, *, schema: pa.Schema, stats: Sequence[str], names: Collection[str] | None = None
) -> tuple[DataFile, ...]:
    """List what was written, drop side files and empty files, and describe the rest for a commit.

    With `names`, only these count: what else lies there was left by a task that Spark tried again.

    Raises:
        Unavailable: the folder is not visible from here: the executors wrote to another machine's disk.
        Corruption: a file cannot be read back or holds other columns.
    """
    path = root / folder
    if not path.is_dir():
        raise Unavailable(
            f"Spark wrote nothing that is visible at {path}. Driver and executors must share the lake's disk."
        )
    files: list[DataFile] = []
    for found in sorted(path.iterdir()):
        if found.name.startswith((".", "_")) or (names is not None and found.name not in names):
            shutil.rmtree(found) if found.is_dir() else found.unlink()
            continue
        add_checksums(found)
        file = data_file(root, f"{folder}/{found.name}", expected=schema, stats=stats)
        if file.rows:
            files.append(file)
        else:
            found.unlink()
    if names is not None and len(files) != len(names):
        raise Corruption(f"{len(names)} files should be in {path}, {len(files)} are; nothing was committed.")
    return tuple(files)


def manifest(root: Path, files: Sequence[DataFile]) -> tuple[OutputFile, ...]:
    """Return the files with the SHA-256 of each, as they are before a commit names them.

    Raises:
        Corruption: a file does not have the size that its footer was read with.
    """
    return tuple(_output(root, file) for file in files)


def _output(root: Path, file: DataFile) -> OutputFile:
    with (root / file.path).open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        size = opened.tell()
    if size != file.size_bytes:
        raise Corruption(
            f"File {root / file.path} has {size} bytes, not {file.size_bytes} as before; nothing was committed."
        )
    return OutputFile(path=file.path, rows=file.rows, bytes=size, sha256=digest)


def discard(root: Path, folder: str) -> None:
    """Remove what an attempt wrote and did not commit."""
    shutil.rmtree(root / folder, ignore_errors=True)
