"""Commands at a shell: whole processes, from the start of the interpreter to their end.

Commands without Spark, and commands with it: the first one starts the shared server, the others join it. The server is one of
its own, in a cache folder of its own that is filled with the jars and the class archive by a first start that is not counted.
Commands that look at every dataset are measured on a lake of a thousand small ones, without Spark.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench.data import NAME, change_rows, settings
from bench.measure import Sample, Summary
from bench.plan import Run, size_text
from bench.results import Check, Report, Row, Sense
from siltstone.host.user_cache import cache_folder
from siltstone.lake import Lake

LARGEST: Final = 1_000_000
QUICK_SECONDS: Final = 0.7
JOINED_SECONDS: Final = 3.0
DATASETS: Final = 1_000
QUICK_DATASETS: Final = 50
ALL_DATASETS_SECONDS: Final = 3.0
ROUNDS: Final = 7


def bench_shell(run: Run) -> Report:
    """Measure at a million rows, or the largest size below; the bench's own JVM idles meanwhile."""
    rows = max((size for size in run.sizes if size <= LARGEST), default=run.sizes[0])
    path = run.stage.copy(run.stage.lake(rows), "shell")
    cache = run.stage.folder / "shell-cache"
    environment = _environment(path, cache)
    try:
        _silt(environment, "spark", "start")  # makes the class archive
        _silt(environment, "spark", "stop")
        lines = [*_without_spark(run, rows, environment), *_with_spark(run, environment)]
    finally:
        _silt(environment, "spark", "stop")
    many = run.stage.folder / "shell-datasets"
    lines += _many_datasets(run, environment | {"SILT_LAKE": str(many)}, many)
    run.stage.discard(path, cache, many)
    return Report(
        name="shell",
        title=f"Commands from the shell, {size_text(rows)} rows",
        rows=tuple(lines),
        notes=("Whole processes. The ratios are against the time a person should wait at most.",),
    )


def _environment(lake: Path, cache: Path) -> dict[str, str]:
    """Return an environment with a cache of its own; the jars are those that are there."""
    jars = cache_folder() / "jars"
    if jars.is_dir():
        shutil.copytree(jars, cache / "siltstone" / "jars", dirs_exist_ok=True)
    return os.environ | {"SILT_LAKE": str(lake), "XDG_CACHE_HOME": str(cache)}


def _silt(environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "siltstone.cli", "--json", *arguments],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _without_spark(run: Run, rows: int, environment: Mapping[str, str]) -> list[Row]:
    def upsert(seed: int) -> object:
        row = change_rows(rows, 1, seed=seed).to_pylist()[0]
        return _silt(environment, "upsert", NAME, "--row", json.dumps(row, default=str))

    seeds = iter(range(10_000))
    calls: dict[str, Callable[[], object]] = {
        "python, an empty program": partial(subprocess.run, [sys.executable, "-c", ""], check=True),
        "silt status": partial(_silt, environment, "status"),
        "silt upsert of one row": lambda: upsert(next(seeds)),
        "silt get of one key": partial(_silt, environment, "get", NAME, "K000000002"),
        "silt head": partial(_silt, environment, "head", NAME),
        "silt list": partial(_silt, environment, "list"),
    }
    found = _rounds(run, calls)
    bars = {"silt status": QUICK_SECONDS, "silt upsert of one row": QUICK_SECONDS}
    return [_row(what, summary, bars.get(what)) for what, summary in found.items()]


def _with_spark(run: Run, environment: Mapping[str, str]) -> list[Row]:
    query = partial(_silt, environment, "sql", f"SELECT count(*) AS n, sum(amount) AS total FROM {NAME}")
    first = run.meter.time(query)
    second = run.meter.time(query)
    found = _rounds(run, {"silt sql, the server runs": query})
    return [
        _row("silt sql, the first command: starts the server", Summary.of([first]), None),
        _row("silt sql, the second command", Summary.of([second]), JOINED_SECONDS),
        *[_row(what, summary, JOINED_SECONDS) for what, summary in found.items()],
    ]


def _many_datasets(run: Run, environment: Mapping[str, str], path: Path) -> list[Row]:
    """Measure what looks at every dataset of a lake; each has one or two upserts that are not folded."""
    datasets = QUICK_DATASETS if run.quick else DATASETS
    run.log(f"shell: {datasets:,} datasets")
    with Lake.open(path, settings=settings(durable=False)) as lake:
        for number in range(datasets):
            made = lake.create(f"bench.many.d{number:05d}", "id STRING NOT NULL, n INT", key="id")
            for sequence in range(1 + number % 2):
                made.upsert([{"id": str(sequence), "n": number}])
    of = f"of {datasets:,} datasets"
    found = _rounds(
        run,
        {
            f"silt status {of}": partial(_silt, environment, "status"),
            f"silt compact --plan {of}": partial(_silt, environment, "compact", "--plan"),
            f"silt list {of}": partial(_silt, environment, "list"),
        },
    )
    return [_row(what, summary, ALL_DATASETS_SECONDS) for what, summary in found.items()]


def _rounds(run: Run, calls: Mapping[str, Callable[[], object]]) -> dict[str, Summary]:
    taken: dict[str, list[Sample]] = {what: [] for what in calls}
    for number in range(1 + min(ROUNDS, run.rounds)):
        for what, call in calls.items():
            sample = run.meter.time(call)
            if number:
                taken[what].append(sample)
    return {what: Summary.of(samples) for what, samples in taken.items()}


def _row(what: str, summary: Summary, limit: float | None) -> Row:
    checks = (
        (Check(ratio=summary.seconds / limit, of=f"of {limit:g} s", sense=Sense.AT_MOST, must=1.0),) if limit else ()
    )
    return Row(what=what, time=summary, checks=checks, uses_jvm=False)
