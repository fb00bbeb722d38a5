"""Chooses which of several rows with one key is written: the last by the columns that the caller names.

Rows that agree in the key and in those columns, and differ elsewhere, all stay. The loader counts and rejects them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.store import Store
from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_IS_BAD: Final = "_is_bad"
_RANK: Final = "_rank"
_CONTENT: Final = "_content_hash"


def check_order(store: Store, order_by: Sequence[str]) -> None:
    """Raise InvalidRequest that names a column which is to order the rows, but does not exist or has no order."""
    for name in order_by:
        if name not in store.schema.names:
            raise InvalidRequest(
                f"Dataset {store.name}: column {name!r}, which is to order the rows, is not in the schema."
            )
        if pa.types.is_nested(store.schema.field(name).type):
            raise InvalidRequest(f"Dataset {store.name}: column {name!r} is nested; rows cannot be ordered by it.")


def last_frame(frame: "DataFrame", store: Store, order_by: Sequence[str], *, bad: "Column") -> "DataFrame":
    """Return the last row of each key by `order_by`; null comes first. Of equal rows one is returned.

    All bad rows are returned, because they are counted whatever their key is.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy(*store.spec.key, _IS_BAD).orderBy(
        *[F.col(f"`{name}`").desc_nulls_last() for name in order_by]
    )
    ranked = frame.withColumn(_IS_BAD, bad).withColumn(_RANK, F.rank().over(order))
    last = ranked.where(F.col(_IS_BAD) | (F.col(_RANK) == 1))
    each = F.when(F.col(_IS_BAD), F.monotonically_increasing_id()).otherwise(_content_hash(store.schema))
    distinct = last.withColumn(_CONTENT, each).dropDuplicates([*store.spec.key, _IS_BAD, _CONTENT])
    return distinct.drop(_IS_BAD, _RANK, _CONTENT)


def _content_hash(schema: pa.Schema) -> "Column":
    """Return a hash that is the same for equal rows and differs if a null is in another column.

    Spark's hash skips nulls and does not support maps. So each flat column is hashed with its null flag, a nested one
    as JSON.
    """
    from pyspark.sql import functions as F

    exact = {
        "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
        "ignoreNullFields": "false",
    }
    hashed: list[Column] = []
    for field in schema:
        column = F.col(f"`{field.name}`")
        if pa.types.is_nested(field.type):
            hashed.append(F.to_json(F.struct(column), exact))
        else:
            hashed += [column, column.isNull()]
    return F.xxhash64(*hashed)


def order_rows(table: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Sort rows by columns, null first, so that the last row of each key wins. Equal rows stay in order."""
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending", "at_start") for name in order_by]))
