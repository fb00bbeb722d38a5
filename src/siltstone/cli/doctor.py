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
from siltstone.cli.context import each, select_datasets
from siltstone.config import Settings, unknown_variables
from siltstone.delta.layout import expanded
from siltstone.errors import NotFound, SiltstoneError
from siltstone.host.private_folders import private_folder
from siltstone.host.user_cache import cache_folder
from siltstone.model.units import counted, size_text
from siltstone.spark.jars import DELTA_VERSION, delta_jars, spark_home
from siltstone.spark.jvm import find_java
from siltstone.spark.scratch import REMEDY, scratch_root, sweep_all

if TYPE_CHECKING:
    from siltstone.lake import Lake

OLDEST_PYTHON: Final = (3, 11)
PACKAGES: Final = ("siltstone", "pyspark", "deltalake", "pyarrow", "pandas", "sqlglot")
LOW_DISK_BYTES: Final = 1024**3
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
    finding: str


CheckResult = tuple[Verdict, str]


def run_checks(lake_path: str | None, *, open_lake: "Callable[[], Lake]") -> list[Check]:
    """Run every check. A check that raises a `SiltstoneError` has failed, with the error as its finding."""
    checks: dict[str, Callable[[], CheckResult]] = {
        "python": _python,
        "packages": _packages,
        "environment": _environment,
        "java": lambda: (Verdict.OK, "{0.version} at {0.home}".format(find_java())),
        "delta jars": _jars,
        "scratch": _scratch,
        "lake": lambda: (Verdict.NOTE, "none was named; pass --lake PATH to check one"),
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
            verdict, finding = check()
        except (SiltstoneError, OSError) as error:
            verdict, finding = Verdict.FAILED, str(error)
        results.append(Check(name=name, verdict=verdict, finding=finding))
    return results


def _python() -> CheckResult:
    good = sys.version_info[:2] >= OLDEST_PYTHON
    return Verdict.OK if good else Verdict.FAILED, ".".join(map(str, sys.version_info[:3]))


def _packages() -> CheckResult:
    versions: list[str] = []
    verdict = Verdict.OK
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} is missing")
            verdict = Verdict.FAILED
    return verdict, ", ".join(versions)


def _environment() -> CheckResult:
    """Name environment variables with a misspelled name, which are ignored elsewhere, or with an invalid value."""
    Settings.load()
    unknown = [
        f"{name} is ignored" + (f"; did you mean {nearest}?" if nearest else "")
        for name, nearest in unknown_variables(os.environ).items()
    ]
    return (Verdict.NOTE, ", ".join(unknown)) if unknown else (Verdict.OK, "every SILT_ variable is known")


def _jars() -> CheckResult:
    """Check where the jars are. The first command that needs Spark downloads missing ones."""
    folder = cache_folder() / "jars" / f"delta-{DELTA_VERSION}-spark-{version('pyspark')}"
    settings = Settings.load()
    if not (settings.spark_jars or any((spark_home() / "jars").glob("delta-spark_*.jar")) or folder.is_dir()):
        return Verdict.NOTE, "not fetched yet; the first use of Spark fetches them"
    jars = delta_jars(settings)
    return Verdict.OK, f"{len(jars)} in {jars[0].parent}" if jars else "part of Spark"


def _scratch() -> CheckResult:
    """Check the folder for temporary files, and remove files of dead processes."""
    settings = Settings.load()
    root = private_folder(scratch_root(settings), remedy=REMEDY)
    removed = sweep_all(settings)
    what = f"; removed {counted(removed, 'folder')} of processes that have ended" if removed else " is private"
    return Verdict.OK, f"{root}{what}"


def _lake(open_lake: "Callable[[], Lake]") -> CheckResult:
    with open_lake() as lake:
        try:
            lake.require_exists()
        except NotFound as note:
            return Verdict.NOTE, str(note)
        datasets, failures = select_datasets(lake, None, every=True)
        statuses, failed = each(datasets, lambda dataset: dataset.status())
        problems = [str(error) for error in (failures | failed).values()]
        problems += [str(error) for status in statuses for error in broken_files(status)]
        problems += [folder.described() for folder in lake.unregistered()]
    backlog = sum(status.backlog_rows for status in statuses)
    text = f"datasets: {len(statuses) + len(failures | failed)}, rows not folded: {backlog:,}"
    return (Verdict.FAILED, " ".join([f"{text}.", *problems])) if problems else (Verdict.OK, text)


def _writable(path: str) -> CheckResult:
    folder = _existing(path)
    if not folder.is_dir():
        return Verdict.FAILED, f"{folder} is a file, not a folder"
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Verdict.OK, f"{folder} is readable and writable"
    return Verdict.FAILED, f"{folder} cannot be read and written; check its permissions"


def _disk(path: str) -> CheckResult:
    usage = shutil.disk_usage(_existing(path))
    verdict = Verdict.OK if usage.free > LOW_DISK_BYTES else Verdict.NOTE
    return verdict, f"{size_text(usage.free)} of {size_text(usage.total)} free"


def _existing(path: str) -> Path:
    """Return the lake's folder, or its nearest parent that exists."""
    folder = expanded(path, what="Lake")
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
