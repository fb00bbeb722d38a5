"""Compactors on lakes that need no Spark: squashes, vacuums, and folds and purges of datasets without changes."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.compaction.execution.events import CompactionEvent, Subscriber
from siltstone.compaction.execution.report import CycleReport
from siltstone.compaction.lake_components import LakeComponents
from siltstone.compactor.service import CompactorService
from siltstone.config import JobPlace, Settings
from siltstone.coordination.state_files import STATUS
from siltstone.lake import Lake
from siltstone.maintenance.service import MaintenanceService
from siltstone.model.compaction_request import CompactionRequest, RequestKind, Selection
from tests.support.clocks import FakeClock
from tests.support.internals import components_of, replace_maintenance, state_files_of, store_of
from tests.support.tables import FAST

SETTINGS: Final = replace(FAST, schedule_jitter_seconds=0.0, squash_files=3, stop_seconds=5.0, jobs=JobPlace.INLINE)
NAME: Final = "a.b.c"
CRONS: Final = tuple(field.name for field in fields(Settings) if field.name.endswith("_cron"))
WAIT_SECONDS: Final = 60.0
FOLD: Final = CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,))
PURGE: Final = CompactionRequest(kind=RequestKind.COMPACT, names=(NAME,), purge=True)
CYCLE: Final = CompactionRequest(kind=RequestKind.CYCLE)


def lake_of(root: Path, *, clock: Clock | None = None, settings: Settings = SETTINGS) -> Lake:
    """Open a lake as another process does; no task is due by the real clock."""
    return Lake.open(root, settings=settings if clock is not None else quiet(settings), clock=clock)


def quiet(settings: Settings) -> Settings:
    """Return settings by which no task is due at any time of the clock."""
    tiers = "hourly.enabled=no; daily.enabled=no; monthly.enabled=no"
    never = {name: "" for name in CRONS if getattr(settings, name) == getattr(Settings(), name)}
    return replace(settings, tiers=tiers, **never)  # type: ignore[arg-type]


def filled(lake: Lake, *, batches: int = 0, first: int = 0) -> None:
    """Create the dataset, and write N batches of one row each."""
    dataset = lake.create(NAME, "id BIGINT NOT NULL", key="id")
    for number in range(first, first + batches):
        dataset.upsert([{"id": number}])


def ids(lake: Lake) -> list[int]:
    """Return the ids of the dataset's rows, sorted."""
    return sorted(lake.dataset(NAME).to_arrow().column("id").to_pylist())


def until(condition: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Wait until a condition returns something, and return that."""
    end = time.monotonic() + WAIT_SECONDS
    while not (result := condition()):
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)
    return result


class SlowMaintenance(MaintenanceService):
    """Maintenance whose cycles last until they are stopped or released, as with a long job."""

    def __init__(self, components: LakeComponents) -> None:
        super().__init__(components)
        self.began, self.go_on = threading.Event(), threading.Event()
        self.ignores_stop = False
        """True for a job that ignores a stop."""

    def run_cycle(
        self,
        selection: Selection,
        *,
        cycle: int | None = None,
        epoch: int | None = None,
        continuous: bool = False,
        subscribers: Sequence[Subscriber] = (),
        stopping: Callable[[], bool] = lambda: False,
    ) -> CycleReport:
        self.began.set()
        while not self.go_on.wait(0.01):
            if stopping() and not self.ignores_stop:
                return CycleReport(cycle=cycle or 0, results=())
        return super().run_cycle(
            selection,
            cycle=cycle,
            epoch=epoch,
            continuous=continuous,
            subscribers=subscribers,
            stopping=stopping,
        )


def slow_lake(root: Path, *, settings: Settings = SETTINGS) -> tuple[Lake, SlowMaintenance]:
    """Open a lake whose cycles last until they are stopped or released."""
    lake = Lake.open(root, settings=quiet(settings))
    slow = SlowMaintenance(components_of(lake))
    replace_maintenance(lake, slow)
    return lake, slow


def note_in_process(root: str) -> int:
    """Claim the number of the next cycle, then write a status file."""
    files = state_files_of(lake_of(Path(root)))
    number = files.next_cycle()
    files.write(STATUS, {"holder": "me"})
    return number


class Bench:
    """Compactors on one lake and one clock that a test moves, and their events."""

    def __init__(self, root: Path) -> None:
        """Create the lake with one empty dataset."""
        self.root, self.clock = root, FakeClock()
        self.received: list[CompactionEvent] = []
        self.services: list[CompactorService] = []
        self.lake = lake_of(root, clock=self.clock)
        filled(self.lake)

    def service(self, lake: Lake | None = None, **options: Any) -> CompactorService:  # noqa: ANN401
        """Return another compactor of the lake, not yet started."""
        opened = lake or lake_of(self.root, clock=self.clock)
        service = opened.compactor(on_event=self.received.append, **options)
        self.services.append(service)
        return service

    def events(self) -> list[str]:
        """Return the names of all events so far."""
        return [event.name for event in self.received]

    def epoch(self) -> int:
        """Return the epoch of the dataset."""
        return store_of(self.lake.dataset(NAME)).snapshot().epoch
