"""Keys as a caller passes them, converted to the key columns of a dataset."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from siltstone.dataset.write.row_conversion import to_table
from siltstone.errors import InvalidRequest


def key_table(keys: Any, schema: pa.Schema, key: Sequence[str], *, dataset: str) -> pa.Table:  # noqa: ANN401
    """Return keys in the dataset's types, one row for each.

    Keys are a list of key values, or of tuples or dicts of a composite key; or an Arrow table or a pandas frame.
    """
    key_schema = pa.schema([schema.field(name) for name in key])
    if isinstance(keys, Sequence) and not isinstance(keys, str | bytes):
        keys = [_key_row(item, key, dataset) for item in keys]
    elif not isinstance(keys, pa.Table) and not hasattr(keys, "iloc"):
        raise InvalidRequest(f"Dataset {dataset}: pass the keys as a list, not as {type(keys).__name__}.")
    return to_table(keys, key_schema, dataset=dataset, any_year=True)


def _key_row(item: Any, key: Sequence[str], dataset: str) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(item, dict):
        return item
    values = item if isinstance(item, tuple | list) else (item,)
    if len(values) != len(key):
        raise InvalidRequest(f"Dataset {dataset}: a key has {len(key)} values ({', '.join(key)}), not {item!r}.")
    return dict(zip(key, values, strict=True))
