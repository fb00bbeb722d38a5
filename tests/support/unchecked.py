"""Rows that the current rules refuse, written as an earlier version or another program could have."""

import pyarrow as pa

from siltstone import Dataset
from siltstone.model.columns import Op
from tests.support.internals import write_rows


def write_unchecked(dataset: Dataset, rows: pa.Table) -> None:
    """Write rows in the dataset's types without checking their values."""
    op = Op.APPEND if dataset.spec.is_log else Op.UPSERT
    write_rows(dataset, rows, op)
