"""The planner: one plan over a million file entries, in a process of its own, so that its memory is measured without the bench's.

Every dataset has its periods, from the one that is open to some months ago, each with a hundred files: small ones, compacted
ones and large ones, in two partitions; every third dataset is keyed and has change files. The child makes the
entries, then plans; its answer is the time of the plan, and how much its peak memory grew by the entries and the plan together.
"""

import datetime
import json
import subprocess
import sys
import time
from typing import Final

from bench.measure import Peak, Sample, Summary
from bench.plan import Run
from bench.results import Check, Report, Row, Sense
from siltstone.compaction.planning.model import Backlog, FileEntry, Inputs, Plan, Shape, TableState
from siltstone.compaction.planning.planner import plan
from siltstone.config import Settings
from siltstone.model.periods import Granularity, coarser, end

DATASETS: Final = 500
QUICK_DATASETS: Final = 5
PERIODS: Final = 20
FILES: Final = 100
"""Files of one period of one dataset: 500 datasets of 20 periods have 1,000,000."""
NOW_MS: Final = 1_793_000_000_000
HOUR_MS: Final = 3_600_000
SECONDS_BAR: Final = 10.0
MEGABYTES_BAR: Final = 1024.0
MEGABYTE: Final = 1024 * 1024
REGIONS: Final = ((("region", "north"),), (("region", "south"),))


def bench_planner(run: Run) -> Report:
    """Measure one size, as often as the run asks for."""
    datasets = QUICK_DATASETS if run.quick else DATASETS
    entries = datasets * PERIODS * FILES
    run.log(f"planner: {entries:,} file entries of {datasets:,} datasets")
    answers = [_child(datasets) for _ in range(run.rounds)]
    taken = [
        Sample(seconds=found["seconds"], python=Peak(megabytes=found["peak"], added=found["added"]), jvm=None)
        for found in answers
    ]
    time_of = Summary.of(taken)
    added = max(found["added"] for found in answers)
    checks = (
        Check(ratio=time_of.seconds / SECONDS_BAR, of=f"of {SECONDS_BAR:g} s", sense=Sense.AT_MOST, must=1.0),
        Check(ratio=added / MEGABYTES_BAR, of=f"of {MEGABYTES_BAR:g} MB", sense=Sense.AT_MOST, must=1.0),
    )
    found = answers[0]
    return Report(
        name="planner",
        title=f"The planner over {entries:,} file entries",
        rows=(Row(what=f"plan of {entries:,} files", time=time_of, checks=checks, uses_jvm=False),),
        notes=(
            f"{datasets:,} datasets of {PERIODS} periods; {found['jobs']:,.0f} jobs, {found['left_out']:,.0f} left out.",
            "Memory is that of the entries and the plan together, in a process of its own.",
        ),
    )


def _child(datasets: int) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-m", "bench.planner", str(datasets)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def inputs(datasets: int) -> Inputs:
    """Return tables of a number of datasets; the same ones each time."""
    return Inputs(tables=[_table(number) for number in range(datasets)], cycle=1)


def _table(number: int) -> TableState:
    name = f"bench.planner.d{number:05d}"
    is_log = number % 3 != 0
    files = [file for at in range(PERIODS) for file in _period(number, at, is_log=is_log)]
    changes = [FileEntry(f"data/{number:05d}-{n:05d}.parquet", 2000 + n, rows=9, order=n) for n in range(40)]
    return TableState(
        name=name,
        shape=Shape.LOG if is_log else Shape.KEYED,
        files=files,
        change_files=() if is_log else changes,
        backlog=Backlog() if is_log else Backlog(batches=40, rows=360, size_bytes=90_000, oldest_ms=NOW_MS - HOUR_MS),
        cluster_by=("at", "region") if number % 5 == 0 else (),
    )


def _period(number: int, at: int, *, is_log: bool) -> list[FileEntry]:
    hours_ago = at * (7 + number % 90)
    granularity = (Granularity.HOUR, Granularity.HOUR, Granularity.DAY)[at % 3]
    period = coarser(_hour(NOW_MS - hours_ago * HOUR_MS), granularity) if is_log else ""
    written_ms = NOW_MS - max(0, hours_ago - 1) * HOUR_MS
    found: list[FileEntry] = []
    for n in range(FILES):
        large, compacted = n % 25 == 0, n % 10 == 0
        found.append(
            FileEntry(
                path=f"data/{number:05d}/{at:02d}/part-{n:05d}-{number * 7919 + n:016x}.snappy.parquet",
                size_bytes=(300 if large else 3) * MEGABYTE + n,
                rows=10_000 + n,
                period=period,
                partition=REGIONS[n % 2] if is_log else (),
                tier="hourly" if compacted else "",
                modified_ms=written_ms + n,
            )
        )
    return found


def _hour(moment_ms: int) -> str:
    return datetime.datetime.fromtimestamp(moment_ms // 1000, datetime.UTC).isoformat()[:13]


def main() -> int:
    """Make the entries, plan once, and print what it took."""
    import resource

    def peak_megabytes() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    before = peak_megabytes()
    given = inputs(int(sys.argv[1]))
    now = end(_hour(NOW_MS))
    started = time.perf_counter()
    made = plan(given, Settings(), now)
    seconds = time.perf_counter() - started
    peak = peak_megabytes()
    _check(given, made)
    answer = {"seconds": seconds, "peak": peak, "added": peak - before, "jobs": len(made.jobs)}
    print(json.dumps(answer | {"left_out": len(made.left_out)}))
    return 0


def _check(given: Inputs, made: Plan) -> None:
    """Refuse to measure a planner that does not plan."""
    taken = [(job.dataset, file.path) for job in made.jobs for file in job.files]
    if len(set(taken)) != len(taken) or len(made.jobs) < len(given.tables) or not made.left_out:
        raise AssertionError("the plan is not what it should be")


if __name__ == "__main__":
    sys.exit(main())
