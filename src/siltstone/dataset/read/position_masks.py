"""Hides changed rows by position instead of by key: for a few changes over a large base.

A join by key reads, hashes and looks up the key of every base row in every query. But the position of a changed key in
a base file does not change until base does. So a key is searched once, and its position is cached. Positions are bit
masks of 64 rows each. A query reads no key, and neighbouring rows use the same mask.

Spark finds many new keys by reading base's keys. A few keys are looked up without Spark in the row groups that may
hold them. So a small write costs the next read little.

Base and change files are one scan, because a union would end Spark's generated code. In a change file every row is
hidden that is not the last upsert of its key.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.read.arrow_view import FILE, ROW, base_places, has_key_of, latest_changes
from siltstone.dataset.read.spark_frames import LISTED_FILES, arrow_frame, by_hash, scan
from siltstone.dataset.snapshot import Snapshot
from siltstone.dataset.store import Store
from siltstone.model.arrays import Numbers
from siltstone.model.columns import OP, Op
from siltstone.model.files import DataFile
from siltstone.spark.errors import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CHANGE_FILES: Final = 128
"""Most change files in the scan. More are read once, as Arrow, because every query would open each of them."""
LOOKED_UP_KEYS: Final = 200
"""Largest number of new keys that are looked up one by one. More are joined with base's keys."""
MASK_ROWS_BITS: Final = 6
FILE_MASKS_BITS: Final = 20
MAX_FILE_ROWS: Final = 1 << (MASK_ROWS_BITS + FILE_MASKS_BITS)
_MASK_ROWS: Final = 1 << MASK_ROWS_BITS
_PLACE: Final = "_place"
_MASK: Final = "_mask"
_NAME: Final = "_name"
_MASKS: Final = pa.schema([(_PLACE, pa.int64()), (_NAME, pa.string()), (_MASK, pa.int64())])


def can_hide(store: Store, snapshot: Snapshot) -> bool:
    """True if base is large enough to gain from masks, and the files are neither too many nor too long."""
    return (
        snapshot.base.rows >= store.settings.positions_from_rows
        and 0 < len(snapshot.base.files) <= LISTED_FILES
        and len(snapshot.unfolded) <= CHANGE_FILES
        and all(file.rows <= MAX_FILE_ROWS for file in (*snapshot.base.files, *snapshot.unfolded))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRows:
    """Positions of hidden rows, as masks that the executors cache until `close`.

    A position is a file, identified by its size, and a run of 64 rows in it. Where two files have the same size, a mask
    also has its file's name. The base rows of all `keys` are in `base_masks`.
    """

    base_version: int
    raw: bool
    keys: pa.Table
    base_masks: pa.Table
    masks: "DataFrame"

    def close(self) -> None:
        """Release the masks of the executors. Frames that need them compute them again."""
        with contextlib.suppress(*spark_errors()):  # the session has ended
            self.masks.unpersist()


def hidden_rows(spark: "SparkSession", store: Store, snapshot: Snapshot, *, before: object, raw: bool) -> HiddenRows:
    """Find all rows that the last changes hide: base rows with a changed key, change rows that are not last.

    Masks found `before` over the same base are reused. Only keys that are new since are searched.
    """
    latest = latest_changes(store, snapshot, raw=raw, places=True)
    keys = latest.select(list(store.spec.key))
    previous = before if isinstance(before, HiddenRows) else None
    new, masks = keys, _MASKS.empty_table()
    if previous is not None and (previous.base_version, previous.raw) == (snapshot.base.version, raw):
        since = keys.filter(pc.invert(has_key_of(keys, previous.keys, store.spec.key)))
        # Otherwise the previous masks belong to a newer snapshot than this one.
        if keys.num_rows - since.num_rows == previous.keys.num_rows:
            new, masks = since, previous.base_masks
    if new.num_rows > LOOKED_UP_KEYS:
        new_masks = _joined(spark, store, snapshot.base.files, new)
    else:
        files = snapshot.base.files if new.num_rows else ()
        new_masks = _mask_table((file, *_masks(base_places(store, file, new))) for file in files)
    masks = _united(masks, new_masks)
    every = _shared_names(
        pa.concat_tables([masks, _outdated(snapshot.unfolded, latest)]), (*snapshot.base.files, *snapshot.unfolded)
    )
    persisted = arrow_frame(spark, every).persist()
    return HiddenRows(base_version=snapshot.base.version, raw=raw, keys=keys, base_masks=masks, masks=persisted)


def visible_frame(spark: "SparkSession", store: Store, snapshot: Snapshot, hidden: HiddenRows) -> "DataFrame":
    """Return the rows of base and change files that are not hidden."""
    from pyspark.sql import functions as F

    paths = [store.base.path / file.path for file in snapshot.base.files]
    paths += [store.changes.path / file.path for file in snapshot.unfolded]
    place, bit, file_name = _position()
    every = scan(spark, store, store.schema, paths).select(
        "*", place.alias("_here"), bit.alias("_bit"), file_name.alias("_file")
    )
    name = F.col(_NAME)
    gone = (
        (F.col("_here") == F.col(_PLACE))
        & (F.getbit(F.col(_MASK), F.col("_bit")) == 1)
        & (name.isNull() | ((F.col("_file") >= name) & (F.col("_file") <= name)))  # an equality would become a lookup
    )
    return every.join(F.broadcast(hidden.masks), gone, "left_anti").select(*store.schema.names)


def _joined(spark: "SparkSession", store: Store, files: Sequence[DataFile], keys: pa.Table) -> pa.Table:
    """Find keys in base files with Spark. Only positions leave Spark."""
    from pyspark.sql import functions as F

    changed, same = by_hash(arrow_frame(spark, keys), store.spec.key)
    base = scan(spark, store, store.schema, [store.base.path / file.path for file in files])
    place, bit, file_name = _position()
    mask = F.call_function("shiftleft", F.lit(1).cast("long"), bit).alias(_MASK)
    name = F.when(F.col("_metadata.file_size").isin(_shared_sizes(files)), file_name).alias(_NAME)
    changed_rows = base.select(*store.spec.key, place.alias(_PLACE), name, mask).join(F.broadcast(changed), same)
    masks = changed_rows.groupBy(_PLACE, _NAME).agg(F.bit_or(_MASK).alias(_MASK)).toArrow().cast(_MASKS)
    by_size = {file.size_bytes: _file_name(file) for file in files}  # Spark sends only the long names that differ
    sizes = (masks.column(_PLACE).to_numpy() >> FILE_MASKS_BITS).tolist()
    names = pc.coalesce(masks.column(_NAME), pa.array([by_size[size] for size in sizes], pa.string()))
    return masks.set_column(1, _NAME, names)


def _outdated(files: Sequence[DataFile], latest: pa.Table) -> pa.Table:
    """Return the masks of the change rows that are not the last upsert of their key."""
    last = latest.filter(pc.equal(latest.column(OP), Op.UPSERT.value))
    numbers, rows = (last.column(name).to_numpy() for name in (FILE, ROW))

    outdated = (np.setdiff1d(np.arange(file.rows), rows[numbers == at]) for at, file in enumerate(files))
    return _mask_table((file, *_masks(positions)) for file, positions in zip(files, outdated, strict=True))


def _masks(rows: Numbers) -> tuple[Numbers, Numbers]:
    """Return the runs of 64 rows that contain the given row numbers, and their masks."""
    runs, where = np.unique(rows >> MASK_ROWS_BITS, return_inverse=True)
    masks = np.zeros(len(runs), np.uint64)
    np.bitwise_or.at(masks, where, np.uint64(1) << (rows & (_MASK_ROWS - 1)).astype(np.uint64))
    return runs, masks.view(np.int64)


def _mask_table(runs_of_files: Iterable[tuple[DataFile, Numbers, Numbers]]) -> pa.Table:
    tables = [
        pa.table([(file.size_bytes << FILE_MASKS_BITS) + runs, [_file_name(file)] * len(runs), masks], schema=_MASKS)
        for file, runs, masks in runs_of_files
    ]
    return pa.concat_tables([_MASKS.empty_table(), *tables])


def _united(masks: pa.Table, new_masks: pa.Table) -> pa.Table:
    """Merge two sets of masks: masks of one position become one."""
    table = pa.concat_tables([masks, new_masks]).combine_chunks()
    if not table.num_rows:
        return table
    places = table.column(_PLACE).to_numpy()
    names = table.column(_NAME).combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((names, places))
    differs = (np.diff(places[order]) != 0) | (np.diff(names[order]) != 0)
    starts = np.concatenate([[0], np.flatnonzero(differs) + 1])
    united = np.bitwise_or.reduceat(table.column(_MASK).to_numpy()[order], starts)
    return table.take(pa.array(order[starts])).set_column(2, _MASK, pa.array(united))


def _shared_names(masks: pa.Table, files: Sequence[DataFile]) -> pa.Table:
    """Remove the name from masks whose file has a unique size, because it would be sent to every task needlessly."""
    shared = pa.array(_shared_sizes(files), pa.int64())
    size = pa.array(masks.column(_PLACE).to_numpy() >> FILE_MASKS_BITS)
    names = pc.if_else(pc.is_in(size, value_set=shared), masks.column(_NAME), pa.scalar(None, pa.string()))
    return masks.set_column(1, _NAME, names)


def _shared_sizes(files: Sequence[DataFile]) -> list[int]:
    """Return the sizes that more than one of the files has."""
    counts = Counter(file.size_bytes for file in files)
    return [size for size, count in counts.items() if count > 1]


def _file_name(file: DataFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _position() -> "tuple[Column, Column, Column]":
    """Return a row's run of 64 rows, its bit in that run, and its file's name.

    Files of different sizes share no run.
    """
    from pyspark.sql import functions as F

    row = F.col("_metadata.row_index")
    place = F.shiftleft(F.col("_metadata.file_size"), FILE_MASKS_BITS) + F.shiftright(row, MASK_ROWS_BITS)
    return place, row.bitwiseAND(_MASK_ROWS - 1).cast("int"), F.col("_metadata.file_name")
