"""A small keyed dataset of people, and rows for it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone import Dataset, Lake

NAME = "crm.sales.people"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("city", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
HOUR_MICROS = 3_600_000_000


def key(number: int) -> str:
    """The key of one person.

    >>> key(7)
    'P000007'
    """
    return f"P{number:06d}"


def person(number: int, **changed: Any) -> dict[str, Any]:  # noqa: ANN401
    """One row as a dict."""
    return {"id": key(number), "n": number, "city": f"city {number % 7}", "at": None} | changed


def people(count: int, *, start: int = 0) -> pa.Table:
    """Many rows as an Arrow table."""
    numbers = range(start, start + count)
    return pa.table(
        {
            "id": [key(i) for i in numbers],
            "n": list(numbers),
            "city": [f"city {i % 7}" for i in numbers],
            "at": pa.array([i * HOUR_MICROS for i in numbers], pa.timestamp("us", tz="UTC")),
        },
        schema=SCHEMA,
    )


def write_people(path: Path, count: int, *, start: int = 0) -> Path:
    """Write rows as one Parquet file for a load."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(people(count, start=start), path)
    return path


def create(lake: Lake, name: str = NAME, *, subject: str | None = "id") -> Dataset:
    """Create the dataset."""
    return lake.create(name, SCHEMA, key="id", subject=subject)


def by_id(table: pa.Table) -> pa.Table:
    """Sort rows by key and cast them to the dataset's types, so that engines can be compared."""
    return table.select(SCHEMA.names).cast(SCHEMA).sort_by("id").combine_chunks()
