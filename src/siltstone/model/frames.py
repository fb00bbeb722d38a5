"""Converts Arrow tables to frames of other libraries."""

from typing import TYPE_CHECKING

import pyarrow as pa

from siltstone.errors import InvalidRequest

if TYPE_CHECKING:
    import polars as pl


def polars_frame(table: pa.Table) -> "pl.DataFrame":
    """Return the rows as a Polars frame. InvalidRequest if Polars is not installed."""
    try:
        import polars
    except ImportError as error:
        raise InvalidRequest("to_polars() needs Polars: pip install 'siltstone[polars]'.") from error
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)  # noqa: S101  # a table becomes a frame, an array a series
    return frame
