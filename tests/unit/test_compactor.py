from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from siltstone.clock import SystemClock
from siltstone.lake import Lake
from tests.support.tables import FAST


@dataclass(frozen=True, slots=True)
class TickingClock(SystemClock):
    """A second passes whenever somebody looks."""

    _seconds: "count[int]" = field(default_factory=count)

    def monotonic_seconds(self) -> float:
        return next(self._seconds)


def test_the_seconds_of_a_purge_are_counted(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=FAST, clock=TickingClock()) as lake:
        dataset = lake.create("a.b.c", "id STRING", key="id")
        assert dataset.compact(purge=True).seconds > dataset.compact().seconds
