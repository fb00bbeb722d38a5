"""Descriptions of a dataset for people: its `DatasetInfo`, one line of text, and HTML for notebooks."""

from typing import Final

import pyarrow as pa

from siltstone.clock import utc_text
from siltstone.dataset.registry import Registration
from siltstone.errors import SiltstoneError
from siltstone.model.preview import cell, html_table
from siltstone.model.reports import DatasetInfo
from siltstone.model.schema import describe, fingerprint, type_name
from siltstone.model.spec import Spec

MAX_HTML_COLUMNS: Final = 50
"""Largest number of columns that a notebook shows."""


def info_of(row: Registration, schema: pa.Schema, *, broken: SiltstoneError | None = None) -> DatasetInfo:
    """Describe a registered dataset with these columns; `broken` is the reason if it cannot be read."""
    return DatasetInfo(
        name=str(row.name),
        kind=row.spec.kind.value,
        key=row.spec.key,
        subject=row.spec.subject,
        fingerprint=fingerprint(schema),
        incarnation=row.incarnation,
        created_at=utc_text(row.at, timespec="seconds"),
        columns=describe(schema),
        time=row.spec.time,
        partition_by=row.spec.partition_by,
        sort_by=row.spec.sort_by,
        cluster_by=row.spec.clustered_by,
        dedup_by=row.spec.dedup_by,
        survivor=str(row.spec.survivor) if row.spec.dedup_by else None,
        broken=None if broken is None else str(broken),
        broken_kind=None if broken is None else broken.kind,
        broken_reason=None if broken is None else broken.reason,
    )


def kind_text(spec: Spec) -> str:
    """Return the kind of a dataset with its time or key."""
    return f"a log by {spec.time}" if spec.is_log else f"keyed by {', '.join(spec.key)}"


def columns_html(schema: pa.Schema, *, caption: str) -> str:
    """Return the first columns as an HTML table."""
    shown = [[cell(f.name), type_name(f.type), "yes" if f.nullable else "no"] for f in list(schema)[:MAX_HTML_COLUMNS]]
    if len(schema) > MAX_HTML_COLUMNS:
        shown.append([f"… {len(schema) - MAX_HTML_COLUMNS} more", "", ""])
    return html_table(("column", "type", "nullable"), shown, caption=caption)
