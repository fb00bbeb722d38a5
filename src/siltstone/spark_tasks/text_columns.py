"""Casts columns of text with Arrow, if every text has a plain form that Arrow reads exactly as `values` does.

`csv_rows` and `json_rows` try this first, and read the other columns value by value.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.spark_tasks.values import cast_exactly

_DAY: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_INTEGER: Final = r"^-?[0-9]{1,18}$"
_NUMBER: Final = r"^-?[0-9]+(\.[0-9]+)?$"
_NUMBER_COMMA: Final = r"^-?[0-9]+(,[0-9]+)?$"


def quick_column(
    texts: pa.Array,
    kind: pa.DataType,
    *,
    date_format: str | None = None,
    timestamp_format: str | None = None,
    decimal_comma: bool = False,
) -> pa.Array:
    """Cast a column of texts that all have a plain form, else raise one of `MISFITS`.

    The options are those of `values.text_reader`.
    """
    if pa.types.is_string(kind):
        return texts
    own_form = timestamp_format if pa.types.is_timestamp(kind) else date_format if pa.types.is_date(kind) else None
    pattern = _pattern(kind, decimal_comma=decimal_comma)
    if own_form is not None or pattern is None or not _all(pc.match_substring_regex(texts, pattern)):
        raise ValueError(kind)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        texts = pc.replace_substring(texts, ",", ".") if decimal_comma else texts
        return cast_exactly(texts.cast(pa.float64()) if pa.types.is_floating(kind) else texts, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        zoned = pc.match_substring_regex(texts, "Z$|[+]00:00$")
        if not _all(zoned):
            if pc.any(zoned, min_count=0).as_py():
                raise ValueError(kind)  # only some have a zone
            texts = texts.cast(pa.timestamp("us"))
    return cast_exactly(texts, kind)


def _all(flags: pa.Array) -> bool:
    return bool(pc.all(flags, min_count=0).as_py())


def _pattern(kind: pa.DataType, *, decimal_comma: bool) -> str | None:
    """Return the pattern of the plain form of a type's texts, or None."""
    if pa.types.is_integer(kind):
        return _INTEGER
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _NUMBER_COMMA if decimal_comma else _NUMBER
    if pa.types.is_boolean(kind):
        return "^(true|false)$"
    if pa.types.is_date(kind):
        return f"^{_DAY}$"
    if pa.types.is_timestamp(kind):
        return f"^{_DAY}{_CLOCK}{'(Z|[+]00:00)?' if kind.tz is not None else ''}$"
    return None
