"""Hiding changed rows by where they stand instead of by their key: for a few changes over a large base.

A join by key reads, hashes and looks up the key of every base row in every query. But where a changed key stands in which
base file does not change until base does: so the places are found once for each state of a dataset, on Spark, and kept by the
executors as bit masks of 64 rows each. A query then reads no key, and rows that stand side by side look at the same mask.

Base and change files are one scan, because a union would end Spark's generated code: in a change file every row is hidden
that is not the last upsert of its key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.frames import LISTED_FILES, arrow_frame, by_hash, spark_schema
from siltstone.dataset.local import FILE, ROW
from siltstone.dataset.store import Snapshot, Store
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE_FILES: Final = 128
"""More change files than this are read once, as Arrow: opening each of them in every query would cost more."""
MASK_ROWS_BITS: Final = 6
FILE_MASKS_BITS: Final = 20
MAX_FILE_ROWS: Final = 1 << (MASK_ROWS_BITS + FILE_MASKS_BITS)
_MASK_ROWS: Final = 1 << MASK_ROWS_BITS
_PLACE: Final = "_place"
_MASK: Final = "_mask"
_NAME: Final = "_name"


def can_hide(store: Store, snapshot: Snapshot) -> bool:
    """True if base is large enough to be worth it, and the files are neither too many nor too long."""
    return (
        snapshot.base.rows >= store.settings.positions_from_rows
        and 0 < len(snapshot.base.files) <= LISTED_FILES
        and len(snapshot.unfolded) <= CHANGE_FILES
        and all(file.rows <= MAX_FILE_ROWS for file in (*snapshot.base.files, *snapshot.unfolded))
    )


@dataclass(frozen=True, slots=True)
class Hidden:
    """The places of hidden rows as masks, kept by the executors until `close`.

    A place is a file, known by its size, and a run of 64 rows in it. `named`: two files have the same size, so a mask
    says its file's name too.
    """

    masks: "DataFrame"
    named: bool

    def close(self) -> None:
        """Let the executors drop the masks; frames that need them work them out again."""
        self.masks.unpersist()


def hidden_rows(spark: "SparkSession", store: Store, snapshot: Snapshot, latest: pa.Table) -> Hidden:
    """Return the masks of all rows that the last changes hide: base rows with a changed key, change rows that are not last."""
    from pyspark.sql import functions as F

    files = (*snapshot.base.files, *snapshot.unfolded)
    named = len({file.size_bytes for file in files}) < len(files)
    columns = [_PLACE, _NAME] if named else [_PLACE]
    changed, same = by_hash(arrow_frame(spark, latest.select(list(store.spec.key))), store.spec.key)
    base = _scan(spark, store, [str(store.base.path / file.path) for file in snapshot.base.files])
    bit = F.call_function("shiftleft", F.lit(1).cast("long"), _bit())
    found = base.select(*store.spec.key, _place(), _name(), bit.alias(_MASK)).join(F.broadcast(changed), same)
    masks = found.groupBy(*columns).agg(F.bit_or(_MASK).alias(_MASK))
    outdated = _outdated(snapshot.unfolded, latest)
    if outdated.num_rows:
        masks = masks.unionByName(arrow_frame(spark, outdated.select([*columns, _MASK])))
    return Hidden(masks.persist(), named)


def visible_frame(spark: "SparkSession", store: Store, snapshot: Snapshot, hidden: Hidden) -> "DataFrame":
    """Return the rows of base and change files that are not hidden."""
    from pyspark.sql import functions as F

    paths = [str(store.base.path / file.path) for file in snapshot.base.files]
    paths += [str(store.changes.path / file.path) for file in snapshot.unfolded]
    every = _scan(spark, store, paths).select(
        "*", _place().alias("_here"), _bit().alias("_bit"), _name().alias("_file")
    )
    gone = (F.col("_here") == F.col(_PLACE)) & (F.getbit(F.col(_MASK), F.col("_bit")) == 1)
    if hidden.named:
        gone = gone & (F.col("_file") == F.col(_NAME))
    return every.join(F.broadcast(hidden.masks), gone, "left_anti").select(*store.schema.names)


def _scan(spark: "SparkSession", store: Store, paths: Sequence[str]) -> "DataFrame":
    return spark.read.schema(spark_schema(store.schema)).parquet(*paths)


def _place() -> "Column":
    """The number of a row's run of 64 rows, unique over files of different sizes."""
    from pyspark.sql import functions as F

    run = F.shiftright(F.col("_metadata.row_index"), MASK_ROWS_BITS)
    return (F.shiftleft(F.col("_metadata.file_size"), FILE_MASKS_BITS) + run).alias(_PLACE)


def _bit() -> "Column":
    from pyspark.sql import functions as F

    return F.col("_metadata.row_index").bitwiseAND(_MASK_ROWS - 1).cast("int")


def _name() -> "Column":
    from pyspark.sql import functions as F

    return F.col("_metadata.file_name").alias(_NAME)


def _outdated(files: Sequence[DataFile], latest: pa.Table) -> pa.Table:
    """Return the masks of the change rows that are not the last upsert of their key."""
    last = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value))
    numbers, rows = (last.column(name).to_numpy() for name in (FILE, ROW))
    tables = [
        pa.table(
            {
                _PLACE: pa.array((file.size_bytes << FILE_MASKS_BITS) + places, pa.int64()),
                _NAME: pa.array([file.path.rsplit("/", 1)[-1]] * len(places), pa.string()),
                _MASK: pa.array(masks, pa.int64()),
            }
        )
        for file, places, masks in _file_masks(files, numbers, rows)
    ]
    return pa.concat_tables(tables)


def _file_masks(
    files: Sequence[DataFile], numbers: "np.ndarray[Any, Any]", rows: "np.ndarray[Any, Any]"
) -> Iterator[tuple[DataFile, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]]:
    """Yield, for each file, the runs of 64 rows in which some are hidden, and their masks; a row not listed is hidden."""
    for number, file in enumerate(files):
        hidden = np.zeros(-(-file.rows // _MASK_ROWS) * _MASK_ROWS, dtype=bool)
        hidden[: file.rows] = True
        hidden[rows[numbers == number]] = False
        masks = np.packbits(hidden, bitorder="little").view("<i8")
        places = np.flatnonzero(masks)
        yield file, places, masks[places]
