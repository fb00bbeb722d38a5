"""Groups of a log's rows: a period and values of the user's partition columns. Rows of one group may share a base file.

Folds and first loads divide rows in the same way. Each row gets an id of its group. Spark writes one folder for each
id, sorted, in files of the target size. The files are then moved out of these folders. A group id is a number or a
hash. So no value of a user becomes a part of a path or has to be escaped. Null is a value like any other.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from siltstone.dataset.read.spark_frames import scan
from siltstone.dataset.store import Store
from siltstone.delta.parquet import data_file, spark_options
from siltstone.errors import Corruption, Unavailable
from siltstone.model.columns import PERIOD
from siltstone.model.files import DataFile
from siltstone.spark_tasks.parquet_checksums import add_checksums

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

GROUP: Final = "_group"
_NAME: Final = "_name"
HOUR_MICROS: Final = 3_600_000_000
MIN_FILE_ROWS: Final = 1000
"""Smallest number of rows of a file, however wide its rows are, because small files cost more than large ones."""
GROUP_TASKS: Final = 8
"""Number of tasks that write less than one file's size, divided by groups, so that they open files in parallel."""

Group = tuple[str | None, ...]
"""A period and the text of each partition value, as in the Delta log."""


def group_columns(store: Store) -> list[str]:
    """Return the names of the columns of a group."""
    return [PERIOD, *store.spec.partition_by]


def group_of(file: DataFile, store: Store) -> Group:
    """Return the group of a file of base."""
    return tuple(file.partition.get(name) for name in group_columns(store))


def with_period(rows: "DataFrame", store: Store) -> "DataFrame":
    """Give each row its period: its hour in UTC, or its day if the time is a date. The session's zone is ignored."""
    from pyspark.sql import functions as F

    assert store.spec.time is not None  # noqa: S101  # it is a log
    kind, column = store.schema.field(store.spec.time).type, F.col(f"`{store.spec.time}`")
    if pa.types.is_date(kind):
        return rows.withColumn(PERIOD, column.cast("string"))
    if kind.tz is None:
        day, hour = column.cast("date"), F.hour(column)
    else:
        hours = _whole(F.unix_micros(column), HOUR_MICROS)
        day, hour = F.date_from_unix_date(_whole(hours, 24).cast("int")), F.pmod(hours, F.lit(24))
    return rows.withColumn(PERIOD, F.concat(day.cast("string"), F.lit("T"), F.lpad(hour.cast("string"), 2, "0")))


def _whole(number: "Column", unit: int) -> "Column":
    """Return the number of whole units in a number: exact, and rounded down below zero, too."""
    from pyspark.sql import functions as F

    return F.call_function("div", number - F.pmod(number, F.lit(unit)), F.lit(unit))


def group_texts(store: Store) -> "list[Column]":
    """Return the period and the partition values of rows with a period, as text."""
    from pyspark.sql import functions as F

    return [F.col(f"`{name}`").cast("string").alias(name) for name in group_columns(store)]


def group_hash(store: Store) -> "Column":
    """Return a hash of the group of rows with a period. It is used where groups are not known before the write.

    Of 20,000 groups two have the same hash once in 10^11 times; `written_groups` would detect it.
    """
    from pyspark.sql import functions as F

    parts = [part for text in group_texts(store) for part in (text.isNull(), text)]  # a hash alone skips null
    return F.xxhash64(*parts)


def file_rows(store: Store, *, rows: int, size_bytes: int) -> int:
    """Return the number of rows in a file of the target size, from the current size of the rows."""
    return max(MIN_FILE_ROWS, store.settings.target_file_bytes * rows // max(1, size_bytes))


def spread(rows: "DataFrame", store: Store, *, parts: int, tasks: int = GROUP_TASKS) -> "DataFrame":
    """Partition rows by `GROUP` into `parts` sorted parts. What fits one part is divided by groups over `tasks`."""
    order = [GROUP, *store.spec.sort_by]
    divided = rows.repartition(tasks, GROUP) if parts == 1 else rows.repartitionByRange(parts, *order)
    return divided.sortWithinPartitions(*order)


def write_groups(rows: "DataFrame", store: Store, folder: str, *, rows_per_file: int) -> None:
    """Write the rows of `spread` with Spark, each group into a folder of its own."""
    options = spark_options(store.base_schema, store.spec.found_by)
    options["maxRecordsPerFile"] = str(rows_per_file)
    writer = rows.select(*store.base_schema.names, GROUP).write.options(**options).mode("error")
    writer.partitionBy(GROUP).parquet(str(store.base.path / folder))


def moved_files(store: Store, folder: str) -> Iterator[tuple[str, str]]:
    """Move written files out of their group folders and delete these; yield each path below base, and its `GROUP`.

    Spark gives files of different groups the same name, and readers identify files by name. So each file name gets the
    number of its folder as a prefix.
    """
    root = store.base.path / folder
    if not root.is_dir():
        raise Unavailable(
            f"Spark wrote nothing that is visible at {root}. Driver and executors must share the lake's disk."
        )
    groups = sorted(root.glob(f"{GROUP}=*"))
    for number, path in enumerate(groups):
        for file in sorted(path.iterdir()):
            if not file.name.startswith((".", "_")):
                moved = file.rename(root / f"{number:05d}-{file.name}")
                yield moved.relative_to(store.base.path).as_posix(), path.name.removeprefix(f"{GROUP}=")
        shutil.rmtree(path)
    for side_file in root.iterdir():
        if side_file.name.startswith((".", "_")):
            shutil.rmtree(side_file) if side_file.is_dir() else side_file.unlink()


def described(store: Store, relative: str, group: Group) -> DataFile:
    """Verify a written file, and return its description for the commit."""
    add_checksums(store.base.path / relative)
    return data_file(
        store.base.path,
        relative,
        expected=store.base_schema,
        stats=store.stats,
        partition=dict(zip(group_columns(store), group, strict=True)),
    )


def written_groups(spark: "SparkSession", store: Store, paths: Sequence[str]) -> Mapping[str, Group]:
    """Return the group of each written file by path, read from its rows, which must be of one group.

    Only groups and counts leave Spark.
    """
    from pyspark.sql import functions as F

    if not paths:
        return {}
    rows = scan(spark, store, store.base_schema, [store.base.path / path for path in paths])
    named = with_period(rows.withColumn(_NAME, F.col("_metadata.file_name")), store)
    by_name = {Path(path).name: path for path in paths}
    groups: dict[str, Group] = {}
    for row in named.select(_NAME, *group_texts(store)).distinct().toArrow().to_pylist():
        path = by_name[row[_NAME]]
        if path in groups:
            raise Corruption(
                f"Dataset {store.name}: {path} has rows of two periods or partitions; nothing was committed. "
                "Check the disk, and load again."
            )
        groups[path] = tuple(row[name] for name in group_columns(store))
    if missing := set(paths) - groups.keys():
        raise Corruption(
            f"Dataset {store.name}: {min(missing)} has no rows; nothing was committed. Check the disk, and load again."
        )
    return groups
