"""The checks of `silt doctor`. None starts a JVM. They change nothing, but remove temporary files of dead processes."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from siltstone.cli.commands.status import broken_files
from siltstone.cli.context import chosen, each
from siltstone.config import Settings, unknown_variables
from siltstone.errors import NotFound, SiltstoneError
from siltstone.host.private_folders import private_folder
from siltstone.host.user_cache import cache_folder
from siltstone.spark.jars import DELTA_VERSION, delta_jars, spark_home
from siltstone.spark.jvm import find_java
from siltstone.spark.scratch import REMEDY, scratch_root, sweep_all

if TYPE_CHECKING:
    from siltstone.lake import Lake

OLDEST_PYTHON: Final = (3, 11)
PACKAGES: Final = ("siltstone", "pyspark", "deltalake", "pyarrow", "pandas", "sqlglot")
LOW_DISK_BYTES: Final = 1_000_000_000
"""Free disk space below which a warning is shown, because a fold of a medium dataset may not fit."""


class Verdict(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its subject, its verdict, and its finding."""

    name: str
    verdict: Verdict
    found: str


def run_checks(lake_path: str | None, *, open_lake: "Callable[[], Lake]") -> list[Check]:
    """Run every check. A check that raises a `SiltstoneError` has failed, with the error as its finding."""
    checks: dict[str, Callable[[], Check]] = {
        "python": _python,
        "packages": _packages,
        "environment": _environment,
        "java": _java,
        "delta jars": _jars,
        "scratch": _scratch,
    }
    if lake_path:
        checks |= {
            "lake": lambda: _lake(open_lake),
            "writable": lambda: _writable(lake_path),
            "disk": lambda: _disk(lake_path),
        }
    results: list[Check] = []
    for name, check in checks.items():
        try:
            results.append(check())
        except (SiltstoneError, OSError) as error:
            results.append(Check(name=name, verdict=Verdict.FAILED, found=str(error)))
    if not lake_path:
        results.append(Check(name="lake", verdict=Verdict.NOTE, found="none was named; pass --lake PATH to check one"))
    return results


def _python() -> Check:
    number = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info[:2] >= OLDEST_PYTHON
    return Check(name="python", verdict=Verdict.OK if good else Verdict.FAILED, found=number)


def _packages() -> Check:
    versions: list[str] = []
    missing = False
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} is missing")
            missing = True
    return Check(name="packages", verdict=Verdict.FAILED if missing else Verdict.OK, found=", ".join(versions))


def _environment() -> Check:
    """Name environment variables with a misspelled name, which are ignored elsewhere, or with an invalid value."""
    Settings.load()
    unknown = [
        f"{name} is ignored" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in unknown_variables(os.environ).items()
    ]
    if unknown:
        return Check(name="environment", verdict=Verdict.NOTE, found=", ".join(unknown))
    return Check(name="environment", verdict=Verdict.OK, found="every SILT_ variable is known")


def _java() -> Check:
    java = find_java()
    return Check(name="java", verdict=Verdict.OK, found=f"{java.version} at {java.home}")


def _jars() -> Check:
    """Check where the jars are. The first command that needs Spark downloads missing ones."""
    folder = cache_folder() / "jars" / f"delta-{DELTA_VERSION}-spark-{version('pyspark')}"
    settings = Settings.load()
    available = settings.spark_jars or any((spark_home() / "jars").glob("delta-spark_*.jar")) or folder.is_dir()
    if not available:
        return Check(
            name="delta jars", verdict=Verdict.NOTE, found="not fetched yet; the first use of Spark fetches them"
        )
    jars = delta_jars(settings)
    return Check(
        name="delta jars", verdict=Verdict.OK, found=f"{len(jars)} in {jars[0].parent}" if jars else "part of Spark"
    )


def _scratch() -> Check:
    """Check the folder for temporary files, and remove files of dead processes."""
    settings = Settings.load()
    root = private_folder(scratch_root(settings), remedy=REMEDY)
    removed = sweep_all(settings)
    text = f"{root}; removed {removed} folders of processes that have ended" if removed else f"{root} is private"
    return Check(name="scratch", verdict=Verdict.OK, found=text)


def _lake(open_lake: "Callable[[], Lake]") -> Check:
    with open_lake() as lake:
        try:
            lake.require_exists()
        except NotFound as note:
            return Check(name="lake", verdict=Verdict.NOTE, found=str(note))
        datasets, failures = chosen(lake, None, every=True)
        statuses, failed = each(datasets, lambda dataset: dataset.status())
        problems = [str(error) for error in (failures | failed).values()]
        problems += [str(error) for one in statuses for error in broken_files(one)]
        problems += [one.described() for one in lake.unregistered()]
    backlog = sum(one.backlog_rows for one in statuses)
    text = f"datasets: {len(statuses) + len(failures | failed)}, rows not folded: {backlog:,}"
    if problems:
        return Check(name="lake", verdict=Verdict.FAILED, found=" ".join([f"{text}.", *problems]))
    return Check(name="lake", verdict=Verdict.OK, found=text)


def _writable(path: str) -> Check:
    place = _existing(path)
    if not place.is_dir():
        return Check(name="writable", verdict=Verdict.FAILED, found=f"{place} is a file, not a folder")
    good = os.access(place, os.R_OK | os.W_OK | os.X_OK)
    text = f"{place} is readable and writable" if good else f"{place} cannot be read and written; check its permissions"
    return Check(name="writable", verdict=Verdict.OK if good else Verdict.FAILED, found=text)


def _disk(path: str) -> Check:
    usage = shutil.disk_usage(_existing(path))
    verdict = Verdict.OK if usage.free > LOW_DISK_BYTES else Verdict.NOTE
    return Check(name="disk", verdict=verdict, found=f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free")


def _existing(path: str) -> Path:
    """Return the lake's folder, or its nearest parent that exists."""
    place = Path(path).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place
