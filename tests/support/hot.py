"""Helpers of hot cache tests: its rows as a multiset, and folds of logs without Spark."""

import math
from collections import Counter
from typing import Any

import pyarrow as pa

from siltstone import Dataset, Lake
from siltstone.dataset.read.merged_view import view_table
from siltstone.model.columns import BATCH_ID, PERIOD, WRITTEN_AT
from tests.support.folds import land, stage
from tests.support.internals import store_of

Bag = Counter[Any]


def hot_table(lake: Lake, name: str) -> pa.Table:
    """Return all rows that the hot cache has of a dataset, in the dataset's types."""
    with lake.hot.snapshot([name]) as hot:
        return hot.cursor.sql(f"SELECT * FROM {hot.tables[name]}").to_arrow_table().cast(hot.schemas[name])


def ask(lake: Lake, name: str, question: str) -> Any:  # noqa: ANN401
    """Return the first value of a query's answer; ``{t}`` is the table."""
    with lake.hot.snapshot([name]) as hot:
        answer = hot.cursor.execute(question.format(t=hot.tables[name])).fetchone()
    assert answer is not None
    return answer[0]


def bag(rows: pa.Table) -> Bag:
    """Return rows as a multiset; the sign of a zero counts, and a NaN equals itself."""
    return Counter(tuple(plain(value) for value in row.values()) for row in rows.to_pylist())


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value that can be compared and hashed."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(plain(inner) for inner in value)
    return value


def assert_same(lake: Lake, dataset: Dataset) -> None:
    """Check that the hot rows are those of the merged view, with its types."""
    hot, view = hot_table(lake, str(dataset.name)), dataset.to_arrow()
    assert hot.schema.equals(view.schema)
    assert bag(hot) == bag(view)


def fold_log(log: Dataset, *, with_prune: bool = True) -> None:
    """Fold a log as a whole, by Arrow: one file for each hour and region."""
    store = store_of(log)
    snapshot = store.snapshot()
    parts: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for row in view_table(store, snapshot).to_pylist():  # of this snapshot: another process may write meanwhile
        hour = row["at"].strftime("%Y-%m-%dT%H")
        parts.setdefault((hour, row["region"]), []).append(row | {WRITTEN_AT: None, BATCH_ID: None})
    files = tuple(
        stage(
            store,
            store.base,
            pa.Table.from_pylist(rows, schema=store.base_schema),
            {PERIOD: hour, "region": region},
        )
        for (hour, region), rows in parts.items()
    )
    land(store, snapshot, files, with_prune=with_prune)
