"""Additional jars for Spark: Delta's and a database driver's. They are downloaded once into the user's cache.

Terms:

* *jars*: Delta's own jars and those of their dependencies that PySpark does not ship. PySpark's jars take precedence, because
  two versions of one library in a class path cause errors that show late.
* *driver*: PostgreSQL's, for loads over JDBC. It is used if it is in the cache, and downloaded when it is first needed.
* *cache*: ``$XDG_CACHE_HOME/siltstone`` or ``~/.cache/siltstone``; the jars are in ``jars/delta-<v>-spark-<v>`` and
  ``jars/postgresql-<v>``.

Flow of `delta_jars`:

1. Use the folder that the setting `spark_jars` names, if it is set. No network access is attempted then.
2. Use no jars if the Spark installation has Delta among its own.
3. Use the cache.
4. Spark's own dependency resolver downloads into a temporary folder next to the cache's, which is then renamed. A crash leaves
   a temporary folder that no process reads. Of two processes at once, one wins and both find the same jars.

`main` does this ahead of time, for ``make setup``.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from siltstone.config import Settings
from siltstone.errors import Unavailable
from siltstone.host.user_cache import cache_folder
from siltstone.spark.jvm import find_java

DELTA_VERSION: Final = "4.4.0"
SCALA_VERSION: Final = "2.13"
NEEDED: Final = ("delta-spark", "delta-storage")
POSTGRES_VERSION: Final = "42.7.7"
POSTGRES: Final = f"org.postgresql:postgresql:{POSTGRES_VERSION}"
SHIPPED_BY_SPARK: Final = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
"""Large jars that are excluded from the download. Smaller ones that Spark ships are deleted after it."""
FETCH_TIMEOUT_SECONDS: Final = 600.0
RESOLVER_SETTINGS: Final = ("spark.jars.repositories", "spark.jars.ivySettings")
"""Settings with which a user names a mirror. They are passed to the resolver from the setting `spark`."""


def spark_home() -> Path:
    """Return the Spark installation in use, found without importing PySpark."""
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("PySpark is not installed here. Install it with: pip install 'pyspark[connect]'.")
    return Path(spec.origin).parent


def spark_version() -> str:
    """Return the version of the installed PySpark, found without importing it."""
    from importlib.metadata import version  # late, because its import takes 10 ms and most commands need no Spark

    return version("pyspark")


def coordinate(spark: str) -> str:
    """Return the matching artifact. Delta publishes one for each minor version of Spark."""
    minor = ".".join(spark.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{SCALA_VERSION}:{DELTA_VERSION}"


def delta_jars(settings: Settings) -> tuple[Path, ...]:
    """Return the jars to add to Spark's class path, sorted; empty if Spark already has Delta.

    Raises:
        Unavailable: the configured folder lacks them, or they are not in the cache and could not be downloaded.
    """
    if settings.spark_jars:
        return _from_folder(Path(settings.spark_jars))
    if any((spark_home() / "jars").glob("delta-spark_*.jar")):
        return ()
    folder = cache_folder() / "jars" / f"delta-{DELTA_VERSION}-spark-{spark_version()}"
    if not folder.is_dir():
        _fetch(settings, coordinate(spark_version()), folder, check=_from_folder)
    return _from_folder(folder)


def driver_jars(settings: Settings) -> tuple[Path, ...]:
    """Return the database driver's jars if they are in the cache. With `spark_jars`, the driver must be in that folder."""
    return () if settings.spark_jars else tuple(sorted(_driver_folder().glob("*.jar")))


def fetch_driver(settings: Settings) -> tuple[Path, ...]:
    """Return the database driver's jars; download them if they are not in the cache. A running session does not get them.

    Raises:
        Unavailable: they could not be downloaded.
    """
    if not settings.spark_jars and not _driver_folder().is_dir():
        _fetch(settings, POSTGRES, _driver_folder())
    return driver_jars(settings)


def _driver_folder() -> Path:
    return cache_folder() / "jars" / f"postgresql-{POSTGRES_VERSION}"


def _from_folder(folder: Path) -> tuple[Path, ...]:
    jars = tuple(sorted(folder.glob("*.jar"))) if folder.is_dir() else ()
    missing = [name for name in NEEDED if not any(jar.name.startswith(name) for jar in jars)]
    if missing:
        raise Unavailable(
            f"{folder} has no {' and no '.join(missing)} jar. Point the setting spark_jars to a folder with the jars "
            f"of {coordinate(spark_version())} and its dependencies. Or unset it, and they are downloaded."
        )
    return jars


def _fetch(settings: Settings, package: str, folder: Path, *, check: Callable[[Path], object] = lambda _: None) -> None:
    """Download into a temporary folder, select the jars that Spark does not ship, and rename their folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder.parent))
    except OSError as error:
        raise Unavailable(f"The cache {folder.parent} cannot be written: {error}. Set XDG_CACHE_HOME.") from error
    try:
        _resolve(settings, package, work)
        selected = work / "selected"
        selected.mkdir()
        shipped = {_artifact(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}
        for jar in (work / "jars").glob("*.jar"):
            name = jar.name.split("_", 1)[1]  # the resolver writes group_artifact-version.jar
            if _artifact(name) not in shipped:
                jar.rename(selected / name)
        check(selected)
        with suppress(OSError):  # another process was first
            selected.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _artifact(jar: str) -> str:
    """Return the name of a jar without its version: ``jackson-core-2.21.2.jar`` is ``jackson-core``."""
    return re.sub(r"-\d[^/]*\.jar$", "", jar)


def _resolve(settings: Settings, package: str, work: Path) -> None:
    """Run Spark's resolver once: spark-submit with packages, and a main class that exits at once."""
    options = [f"{name}={settings.spark[name]}" for name in RESOLVER_SETTINGS if name in settings.spark]
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", package, "--exclude-packages", ",".join(SHIPPED_BY_SPARK)),
        *("--conf", f"spark.jars.ivy={work}", "--master", "local[1]"),
        *(word for setting in options for word in ("--conf", setting)),
        *("--class", "org.apache.ivy.Main", "spark-internal", "-version"),
    ]
    environment = os.environ | {"JAVA_HOME": str(find_java().home)}
    try:
        done = subprocess.run(  # noqa: S603
            command, env=environment, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS, check=False
        )
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        output = f"no answer within {FETCH_TIMEOUT_SECONDS:.0f} seconds"
    if not (work / "jars").is_dir():
        relevant = re.compile(r"ERROR|not found|Exception|no answer")
        reasons = [line.strip() for line in output.splitlines() if relevant.search(line)][:3] or [output[-300:]]
        raise Unavailable(
            f"The jars of {package} could not be downloaded: {'; '.join(reasons)}. "
            "Try again with a network. Or name a mirror in the setting spark (spark.jars.repositories). "
            "Or put the jars into a folder and name it in the setting spark_jars."
        )


def main() -> None:
    """Download the jars ahead of time and print where they are; exit with code 5 on failure."""
    try:
        settings = Settings.load()
        jars = delta_jars(settings)
        fetch_driver(settings)
    except Unavailable as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    where = f"{len(jars)} Delta jars in {jars[0].parent}" if jars else "Spark has Delta among its jars"
    sys.stdout.write(f"{where}\n")
