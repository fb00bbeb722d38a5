"""Rows to append to a log and tombstones of a log, converted to rows of changes. Bad rows are rejected by name.

A bad row rejects the batch, or, if the caller requests it, only itself.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.write.change_writer import ChangeWriter
from siltstone.dataset.write.row_conversion import BadRow, check_batch, to_table
from siltstone.errors import InvalidRequest
from siltstone.model.columns import Op
from siltstone.model.reports import Ack, AppendAck, RefusedRow
from siltstone.model.spec import Spec

MAX_REFUSED_ROWS: Final = 1000
"""Largest number of bad rows of a batch. A batch with more is a mistake as a whole, and is rejected as one."""


class OnBadRow(StrEnum):
    """What a bad row rejects: its batch, or only itself."""

    REJECT_BATCH = "reject-batch"
    SKIP = "skip"


def write_appends(
    writer: ChangeWriter,
    rows: Any,  # noqa: ANN401
    *,
    at_most: int | None,
    producer: str | None = None,
    sequence: int | None = None,
) -> AppendAck:
    """Append the good rows, if at most `at_most` are bad (0: a bad row rejects the batch, None: no limit)."""
    store, name = writer.store, str(writer.store.name)

    def make(some: Any) -> pa.Table:  # noqa: ANN401
        return event_table(some, store.schema, store.spec, dataset=name)

    table, refused = (make(rows), ()) if at_most == 0 else good_rows(rows, make, dataset=name, at_most=at_most)
    if table is None:
        writer.note(producer, sequence)
        return AppendAck(sequence=None, rows=0, applied=False, refused=refused)
    check_batch(table, store.spec.key, dataset=name)
    return append_ack(writer.write_rows(table, Op.APPEND, producer=producer, sequence=sequence), refused)


def append_ack(ack: Ack, refused: tuple[RefusedRow, ...] = ()) -> AppendAck:
    """Return the acknowledgement of an append that refused these rows."""
    return AppendAck(sequence=ack.sequence, rows=ack.rows, applied=ack.applied, refused=refused)


def event_table(rows: Any, schema: pa.Schema, spec: Spec, *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return rows to append as an Arrow table with exactly the schema's columns; a BadRow names a row that misfits."""
    table = to_table(rows, schema, dataset=dataset)
    for name in spec.partition_by:
        if pa.types.is_string(schema.field(name).type):
            row = pc.index(table.column(name), "").as_py()
            if row >= 0:
                what = f"partition column {name!r} is empty text"
                why = "readers take that for null. Leave it out, or name it."
                raise BadRow(f"Dataset {dataset}: {what} in row {row}; {why}", detail=f"{what}; {why}")
    return table


def good_rows(
    rows: Any,  # noqa: ANN401
    make: Callable[[Any], pa.Table],
    *,
    dataset: str,
    at_most: int | None = MAX_REFUSED_ROWS,
) -> tuple[pa.Table | None, tuple[RefusedRow, ...]]:
    """Return the good rows, and the bad ones with reasons. The rows are halved until each bad row is isolated.

    InvalidRequest: the value is not a collection of rows, or more than `at_most` rows are bad.
    """
    batch = [rows] if isinstance(rows, Mapping) else rows
    good: list[pa.Table] = []
    refused: list[RefusedRow] = []

    def convert(first: int, count: int) -> None:
        if isinstance(batch, pa.Table | pa.RecordBatch):
            part = batch.slice(first, count)
        else:
            part = getattr(batch, "iloc", batch)[first : first + count]
        try:
            good.append(make(part))
        except InvalidRequest as error:
            if count <= 1:
                # Checked alone, the row's number in the message would be 0.
                reason = error.detail if isinstance(error, BadRow) else str(error)
                refused.append(RefusedRow(row=first, reason=reason))
                if at_most is not None and len(refused) > at_most:
                    raise InvalidRequest(
                        f"Dataset {dataset}: more than {at_most} rows are bad, the first is row {refused[0].row}: "
                        f"{refused[0].reason} Nothing was written."
                    ) from error
                return
            convert(first, count // 2)
            convert(first + count // 2, count - count // 2)

    can_slice = isinstance(batch, pa.Table | pa.RecordBatch | list | tuple) or hasattr(batch, "iloc")
    if not can_slice or not len(batch):
        return make(batch), ()
    convert(0, len(batch))
    return pa.concat_tables(good) if good else None, tuple(refused)


def tombstone_table(values: Any, schema: pa.Schema, subject: Sequence[str], *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return the tombstones, one row each: the subject columns, null where a column is not named.

    The values are those of the one subject column, or dicts that name one or more subject columns.
    """
    if not subject:
        raise InvalidRequest(
            f"Dataset {dataset} is a log without subject columns; there is nothing to hide its rows by. Name them at create."
        )
    subject_schema = pa.schema([schema.field(name).with_nullable(True) for name in subject])  # noqa: FBT003
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        values = [_subject_row(value, subject, dataset) for value in values]
    elif not isinstance(values, pa.Table) and not hasattr(values, "iloc"):
        raise InvalidRequest(f"Dataset {dataset}: pass the values as a list, not as {type(values).__name__}.")
    table = to_table(values, subject_schema, dataset=dataset, any_year=True)
    named = reduce(pc.or_, (table.column(name).is_valid() for name in subject))
    row = pc.index(named, value=False).as_py()
    if row >= 0:
        raise InvalidRequest(f"Dataset {dataset}: tombstone {row} names no value of {', '.join(subject)}.")
    return table


def _subject_row(value: Any, subject: Sequence[str], dataset: str) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(value, Mapping):
        if None in value.values() or not value:
            raise InvalidRequest(f"Dataset {dataset}: {dict(value)!r} names no value; nothing is hidden by null.")
        return dict(value)
    if len(subject) > 1:
        raise InvalidRequest(
            f"Dataset {dataset} has several subject columns ({', '.join(subject)}); pass dicts that name them, not {value!r}."
        )
    if value is None:
        raise InvalidRequest(f"Dataset {dataset}: nothing is hidden by null.")
    return {subject[0]: value}
