"""File lists and tables for the planner's tests."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from siltstone.compaction.planning.model import FileEntry, Inputs, Plan, Shape, TableState
from siltstone.compaction.planning.planner import plan
from siltstone.config import Settings
from siltstone.model.tiers import DEFAULT_TIERS, Tier
from tests.support.refusals import figures

MB = 1024 * 1024
NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
NOW_MS = int(NOW.timestamp() * 1000)
HOUR_MS = 3_600_000
HOURLY, DAILY, WEEKLY, MONTHLY = DEFAULT_TIERS


def moment_ms(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def entries(period: str, count: int, *, size: int = MB, prefix: str = "f", **more: Any) -> list[FileEntry]:  # noqa: ANN401
    """Return files of one period; by default all written at the start of 2026-11-01."""
    values = {"modified_ms": moment_ms("2026-11-01"), "rows": 10} | more
    return [FileEntry(f"{period}/{prefix}{n:04d}", size, period=period, **values) for n in range(count)]


def log(*lists: Sequence[FileEntry], tiers: Sequence[Tier] = (HOURLY,), name: str = "a.b.c", **more: Any) -> TableState:  # noqa: ANN401
    return TableState(
        name=name, shape=Shape.LOG, files=[file for part in lists for file in part], tiers=tuple(tiers), **more
    )


def keyed(**more: Any) -> TableState:  # noqa: ANN401
    values: dict[str, Any] = {"name": "a.b.k", "shape": Shape.KEYED, "removed_files": 0} | more
    return TableState(**values)


def planned(*tables: TableState, now: dt.datetime = NOW, settings: dict[str, Any] | None = None, **more: Any) -> Plan:  # noqa: ANN401
    """Plan without vacuums, which most tests do not need."""
    quiet = [table if table.removed_files is not None else replace(table, removed_files=0) for table in tables]
    return plan(Inputs(tables=quiet, **more), Settings(**(settings or {})), now)


def reasons(found: Plan, lane: str) -> list[str]:
    """Return the figures in the reasons why candidates of a lane were omitted."""
    return [figures(candidate.reason) for candidate in found.left_out if candidate.lane == lane]
