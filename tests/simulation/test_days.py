"""Days of ingest, late data, deaths, hangs and takeovers, by a seed. Rows are right at every step, small files few.

Run with `-s` to read the figures. The deep tests use more seeds, and weeks.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from siltstone.model.periods import Granularity
from tests.simulation.world import LOGS, SETTINGS, STEP_HOURS, World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_CYCLES: Final = 20
"""Cycles within which a candidate must be done: nine lanes take turns, and some cycles die or wait for a hung owner."""
MOST_BATCHES: Final = 4 * SETTINGS.fold_batches
"""Limit of the backlog: rows written until a fold is due, and while compactors die and hang."""
MOST_ROWS_REWRITTEN: Final = 5.0
"""Rows rewritten for each row written: by the squash, the fold, the roll-up into its day, and again with late rows."""
MOST_BYTES_REWRITTEN: Final = 9.0
"""Bytes rewritten for each byte written: half of such small files is footers and bloom filters."""


def simulate(world: World, *, days: int) -> None:
    """Simulate a number of days; the rows that readers see are compared at every step."""
    for _ in range(days):
        for _ in range(24 // STEP_HOURS):
            world.step()
        world.check(whole=True)
    world.settle()
    world.check(whole=True)
    world.on_spark()


def small_files(world: World) -> dict[object, int]:
    """Return the number of small files of each closed day, including those of its hours."""
    small = world.tier("daily").small_bytes
    return {
        (name, *place): sum(size < small for size in sizes)
        for name in LOGS
        for place, sizes in world.files(name, Granularity.DAY).items()
    }


def assert_few_small_files(world: World) -> None:
    """Check that each closed day has only the files that its target size needs, and fewer late files than its tier waits for.

    Needed files: all but one have at least half of the target size. A forced roll-up includes late files.
    """
    most = world.tier("daily").min_files - 1
    assert {place: count for place, count in small_files(world).items() if count > 1 + most} == {}
    while sum(compactor.force() for compactor in world.compactors):
        pass
    assert {place: count for place, count in small_files(world).items() if count > 1} == {}


def live_through(world: World, *, days: int) -> None:
    """Simulate, print the figures, and check their limits."""
    try:
        simulate(world, days=days)
        figures = world.figures
        sys.stdout.write(f"\n{figures.summary()}\n")
        assert figures.longest_wait <= MOST_CYCLES
        assert figures.largest_backlog <= MOST_BATCHES
        assert figures.rows_rewritten <= MOST_ROWS_REWRITTEN
        assert figures.bytes_rewritten <= MOST_BYTES_REWRITTEN
        assert_few_small_files(world)
        world.check(whole=True)
    finally:
        world.close()


@pytest.mark.spark
def test_days_with_deaths_hangs_and_late_rows_keep_every_invariant(lake_path: Path, spark: "SparkSession") -> None:
    world = World(lake_path, seed=1, spark=spark)
    live_through(world, days=2)
    figures = world.figures
    assert {"fold", "squash", "daily", "vacuum"} <= set(figures.jobs)
    assert figures.jobs.total() >= 40
    assert figures.deaths.total() >= 3
    assert figures.hangs
    assert figures.takeovers
    assert figures.rivals
    assert figures.refused


@pytest.mark.deep
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(1, 14))
def test_days_of_other_seeds_keep_every_invariant(lake_path: Path, spark: "SparkSession", seed: int) -> None:
    live_through(World(lake_path, seed=seed, spark=spark), days=4)


@pytest.mark.deep
@pytest.mark.spark
def test_weeks_of_work_reach_every_tier(lake_path: Path, spark: "SparkSession") -> None:
    world = World(lake_path, seed=100, spark=spark)
    live_through(world, days=24)
    assert {"hourly", "daily", "monthly"} <= set(world.figures.jobs)
