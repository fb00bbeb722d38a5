"""Rows to append to a log and tombstones of a log, converted to rows of changes. Bad rows are rejected by name.

Nothing here writes. A bad row rejects the batch, or, if the caller requests it, only itself.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.dataset.write.row_conversion import BadRow, to_table
from siltstone.errors import InvalidRequest
from siltstone.model.reports import RefusedRow
from siltstone.model.spec import Spec

MAX_REFUSED_ROWS: Final = 1000
"""Largest number of bad rows of a batch. A batch with more is a mistake as a whole, and is rejected as one."""


class OnBadRow(StrEnum):
    """What a bad row rejects: its batch, or only itself."""

    REJECT_BATCH = "reject-batch"
    SKIP = "skip"


def event_table(rows: Any, schema: pa.Schema, spec: Spec, *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return rows to append as an Arrow table with exactly the schema's columns.

    Raises:
        InvalidRequest: a row does not fit; the message names it.
    """
    table = to_table(rows, schema, dataset=dataset)
    for name in spec.partition_by:
        if pa.types.is_string(schema.field(name).type):
            row = pc.index(table.column(name), "").as_py()
            if row >= 0:
                what, why = (
                    f"partition column {name!r} is empty text",
                    "readers take that for null. Leave it out, or name it.",
                )
                raise BadRow(f"Dataset {dataset}: {what} in row {row}; {why}", detail=f"{what}; {why}")
    return table


# ---- row by row --------------------------------------------------------------------------------------------------


def good_rows(
    rows: Any,  # noqa: ANN401
    make: Callable[[Any], pa.Table],
    *,
    dataset: str,
    at_most: int | None = MAX_REFUSED_ROWS,
) -> tuple[pa.Table | None, tuple[RefusedRow, ...]]:
    """Return the good rows, and the bad ones with reasons. The rows are halved until each bad row is isolated.

    Raises:
        InvalidRequest: the value is not a collection of rows, or more than `at_most` rows are bad.
    """
    given = [rows] if isinstance(rows, Mapping) else rows
    good: list[pa.Table] = []
    refused: list[RefusedRow] = []

    def judge(first: int, count: int) -> None:
        try:
            good.append(make(_part(given, first, count)))
        except InvalidRequest as error:
            if count <= 1:
                refused.append(RefusedRow(row=first, reason=_reason(error)))
                if at_most is not None and len(refused) > at_most:
                    raise TooManyRefused(refused[0]) from error
                return
            judge(first, count // 2)
            judge(first + count // 2, count - count // 2)

    if not _can_part(given) or not len(given):
        return make(given), ()
    try:
        judge(0, len(given))
    except TooManyRefused as many:
        raise InvalidRequest(
            f"Dataset {dataset}: more than {at_most} rows are bad, the first is row {many.example.row}: "
            f"{many.example.reason} Nothing was written."
        ) from many
    return pa.concat_tables(good) if good else None, tuple(refused)


class TooManyRefused(Exception):  # noqa: N818
    """More rows are bad than the limit allows to name."""

    def __init__(self, example: RefusedRow) -> None:
        """Store one of them for the message."""
        super().__init__(example)
        self.example = example


def _can_part(rows: Any) -> bool:  # noqa: ANN401
    return isinstance(rows, pa.Table | pa.RecordBatch | list | tuple) or hasattr(rows, "iloc")


def _part(rows: Any, first: int, count: int) -> Any:  # noqa: ANN401
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.slice(first, count)
    return rows.iloc[first : first + count] if hasattr(rows, "iloc") else rows[first : first + count]


def _reason(error: InvalidRequest) -> str:
    """Return the fault of a row that was checked alone, without its number in that check, which is 0."""
    return error.detail if isinstance(error, BadRow) else str(error)


# ---- tombstones --------------------------------------------------------------------------------------------------


def tombstone_table(values: Any, schema: pa.Schema, subject: Sequence[str], *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return the tombstones, one row each: the subject columns, null where a column is not named.

    Args:
        values: values of the one subject column, or dicts that name one or more subject columns.
        schema: the dataset's columns.
        subject: its subject columns.
        dataset: its name, for messages.

    Raises:
        InvalidRequest: there is no subject column, or a value does not fit.
    """
    if not subject:
        raise InvalidRequest(
            f"Dataset {dataset} is a log without subject columns; there is nothing to hide its rows by. Name them at create."
        )
    wanted = pa.schema([schema.field(name).with_nullable(True) for name in subject])  # noqa: FBT003
    table = to_table(_named(values, subject, dataset), wanted, dataset=dataset, any_year=True)
    named = pa.chunked_array([pa.repeat(False, table.num_rows)])  # noqa: FBT003
    for name in subject:
        named = pc.or_(named, table.column(name).is_valid())
    row = pc.index(named, value=False).as_py()
    if row >= 0:
        raise InvalidRequest(f"Dataset {dataset}: tombstone {row} names no value of {', '.join(subject)}.")
    return table


def _named(values: Any, subject: Sequence[str], dataset: str) -> Any:  # noqa: ANN401
    if isinstance(values, pa.Table) or hasattr(values, "iloc"):
        return values
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InvalidRequest(f"Dataset {dataset}: pass the values as a list, not as {type(values).__name__}.")
    return [_named_row(value, subject, dataset) for value in values]


def _named_row(value: Any, subject: Sequence[str], dataset: str) -> dict[str, Any]:  # noqa: ANN401
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
