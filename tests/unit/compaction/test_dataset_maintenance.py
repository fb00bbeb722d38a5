from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from siltstone.clock import SystemClock
from siltstone.compaction.operations.dataset_maintenance import PURGE_TRIES, DatasetMaintenance
from siltstone.compaction.operations.fold import check_schemas, initial_plan, report_of
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.store import Store
from siltstone.errors import Conflict
from siltstone.lake import Lake
from siltstone.model.reports import CompactReport
from tests.support.folds import fold_by_arrow
from tests.support.internals import stores_of
from tests.support.tables import FAST


@dataclass(frozen=True, slots=True)
class TickingClock(SystemClock):
    """A clock on which a second passes at each reading."""

    _seconds: "count[int]" = field(default_factory=count)

    def monotonic_seconds(self) -> float:
        return next(self._seconds)


def test_the_seconds_of_a_purge_are_counted(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=FAST, clock=TickingClock()) as lake:
        dataset = lake.create("a.b.c", "id STRING", key="id")
        assert dataset.compact(purge=True).seconds > dataset.compact().seconds


class Overtaken(DatasetMaintenance):
    """Folds by Arrow; another process commits just before."""

    def __init__(self, lake: Lake, *meanwhile: Callable[[Dataset], object]) -> None:
        super().__init__(spark=lambda: pytest.fail("no fold asks for Spark"))
        self._lake = lake
        self._meanwhile = list(meanwhile)
        self.tries = 0

    def _fold(self, store: Store, **_given: Any) -> CompactReport:  # noqa: ANN401
        self.tries += 1
        dataset = self._lake.dataset(str(store.name))
        if self._meanwhile:
            self._meanwhile.pop(0)(dataset)
        snapshot = store.snapshot()
        check_schemas(store, snapshot)
        if not snapshot.unfolded:
            raise Conflict("Another fold was first.")
        fold_by_arrow(dataset)
        return report_of(store, initial_plan(store.snapshot()), (), 0.0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    opened = Lake.open(tmp_path / "lake", settings=FAST)
    opened.create("a.b.c", "id STRING NOT NULL, n INT", key="id").upsert([{"id": "x", "n": 1}])
    return opened


def test_a_purge_that_an_alteration_overtook_continues_with_the_new_columns(lake: Lake) -> None:
    compactor = Overtaken(lake, lambda dataset: dataset.alter(widen={"n": "BIGINT"}))
    report = compactor.compact(stores_of(lake)("a.b.c"), purge=True)
    assert (report.purged, report.final_rows, compactor.tries) == (True, 1, 2)


def test_a_purge_checks_before_its_last_try_whether_there_is_anything_to_fold(lake: Lake) -> None:
    def refuse(dataset: Dataset) -> None:
        raise Conflict(f"Another fold of {dataset.name} was first.")

    compactor = Overtaken(lake, *[refuse] * (PURGE_TRIES - 2), fold_by_arrow)
    report = compactor.compact(stores_of(lake)("a.b.c"), purge=True)
    assert (report.purged, compactor.tries) == (True, PURGE_TRIES - 1)
