"""Settings: frozen, parsed once at the edge, passed down as a value.

Sources of a setting, in this order:

1. an argument of `Settings.load`;
2. the environment (``SILT_`` and the upper-case name);
3. the lake's ``silt.toml``;
4. the user's ``silt.toml``;
5. the default below.

`docs/settings.md` explains each setting, in the groups of the class `Settings`. A test checks that it is complete.

Each setting has a *scope*. A lake's file may contain settings of scope `LAKE` only: how the lake is written and maintained.
Everything about the process that opens a lake (memory, processes, Java, Spark, paths, limits) has the scope `USER`. Otherwise
the reader of another user's lake would run that user's code.
"""

import difflib
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from siltstone.cron import check_cron
from siltstone.errors import InvalidRequest, Unavailable

CONFIG_FILE: Final = "silt.toml"
ENV_PREFIX: Final = "SILT_"
TRACE_VARIABLE: Final = "SILT_TRACE"
OTHER_VARIABLES: Final = frozenset({"SILT_LAKE", "SILT_FAILPOINT", TRACE_VARIABLE})
"""Variables that are not settings: the command's lake, where tests crash, and whether unexpected errors show their stack."""


class SettingScope(StrEnum):
    """Which files may contain a setting."""

    LAKE = "lake"
    """The lake's ``silt.toml`` and the user's."""
    USER = "user"
    """The user's ``silt.toml`` alone."""


LAKE_SETTINGS: Final = frozenset(
    {
        "base_retention_hours",
        "changes_retention_hours",
        "checkpoint_interval_commits",
        "cluster_bytes",
        "cluster_cron",
        "cluster_share",
        "commit_timeout_seconds",
        "cycle_bytes",
        "default_catalog",
        "default_schema",
        "durable",
        "event_log_files",
        "events_cron",
        "fold_batches",
        "fold_cron",
        "fold_minutes",
        "fold_share",
        "idempotence_marks",
        "lease_seconds",
        "recovery_cron",
        "schedule_jitter_seconds",
        "squash_bytes",
        "squash_cron",
        "squash_files",
        "target_file_bytes",
        "tiers",
        "vacuum_cron",
        "vacuum_floor_hours",
        "vacuum_interval_hours",
        "vacuum_retention_hours",
    }
)
"""Settings of scope `LAKE`. A setting that is not listed has the scope `USER`, which is the safe default."""


class Role(StrEnum):
    """The purpose of a process; `model.roles` lists what each role may do."""

    ALL = "all"
    COMPACTOR = "compactor"
    READER = "reader"


class JobPlace(StrEnum):
    """Where the jobs of a cycle run."""

    AUTO = "auto"
    INLINE = "inline"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, in the groups of `docs/settings.md`. The unit is the last word of a name."""

    # Write path
    durable: bool = True
    """fsync of every file, entry and directory before a write is acknowledged."""
    commit_timeout_seconds: float = 60.0
    """Time in seconds for which a commit is retried against other writers before it fails with Unavailable."""
    writer_queue_batches: int = 50
    """Batches that may wait for one table in one process before a caller must wait."""
    upsert_rows: int = 1_000_000
    """Most rows of one change file. A larger batch of dicts, Arrow or pandas rows becomes several files of one commit."""
    target_file_bytes: int = 128 * 1024 * 1024
    """Target size of a base file for loads and folds, in bytes."""
    checkpoint_interval_commits: int = 10
    """Commits between checkpoints; a table with more than 10,000 live files waits longer."""
    idempotence_marks: int = 100_000
    """Producers and loaded files that a dataset remembers. Beyond it, those with the oldest last write are forgotten."""

    # Read path
    verify_checksums: bool = True
    """Check of data files at every read against their checksums. Without it damage can be read as other values."""
    arrow_changes_rows: int = 200_000
    """Largest number of unfolded rows that reach Spark as one Arrow table. More rows are read by the executors."""
    positions_from_rows: int = 2_000_000
    """Number of base rows from which reads hide changed rows by their position, which is computed once per state."""
    lookup_cache_mb: int = 256
    """Memory in MB for the read cache of `get`, shared by all datasets of a lake; 0 turns it off."""

    # Retention and history
    base_retention_hours: float = 168.0
    """Retention of log entries and removed files in `base`, in hours, for readers of old versions."""
    changes_retention_hours: float = 0.25
    """Retention of log entries and removed files in `changes` and the system tables, in hours.

    At least the duration of the longest snapshot.
    """
    vacuum_floor_hours: float = 1.0
    """Shortest retention that a plain vacuum accepts, in hours."""
    vacuum_retention_hours: float = 24.0
    """Time in hours for which a removed file stays readable before the compactor's vacuum deletes it."""
    vacuum_interval_hours: float = 24.0
    """Hours from a vacuum to the compactor's next one. It also plans one after a clustering. 0 turns both off."""

    # Compaction
    fold_batches: int = 64
    """Number of unfolded batches from which a fold is planned; 0 ignores the number."""
    fold_share: float = 0.01
    """Share of the base's rows in unfolded changes from which a fold is planned; 0 ignores the share."""
    fold_minutes: float = 15.0
    """Age of the oldest unfolded batch from which a fold is planned, in minutes; 0 ignores the age."""
    squash_files: int = 32
    """Number of small change files from which a writing process squashes them in the background; 0 turns that off."""
    squash_bytes: int = 16 * 1024 * 1024
    """Largest size in bytes of the change files that one squash merges. Larger change files are left for the fold."""
    cluster_bytes: int = 1024 * 1024 * 1024
    """Bytes that are not clustered from which a clustering is planned; 0 turns that off."""
    cluster_share: float = 0.2
    """Share of a period or base that is not clustered from which a clustering is planned."""
    event_log_files: int = 32
    """Number of small files of an event log from which they are merged; 0 turns that off."""
    tiers: str = ""
    """Changes of tiers by name: ``daily.min_files=6; weekly.enabled=yes`` (in ``silt.toml``: tables ``[tiers.daily]``)."""
    cycle_bytes: int = 64 * 1024 * 1024 * 1024
    """Bytes that one compaction cycle may rewrite. A larger job runs alone."""

    # Schedule of the compactor: cron expressions of five fields, in UTC
    fold_cron: str = "* * * * *"
    """When the compactor plans folds; empty means only on a trigger. The thresholds decide what is done."""
    squash_cron: str = "* * * * *"
    """When the compactor plans squashes of small change files."""
    events_cron: str = "*/10 * * * *"
    """When the compactor plans work on the lake's event log."""
    cluster_cron: str = "30 * * * *"
    """When the compactor plans clusterings."""
    vacuum_cron: str = "20 * * * *"
    """When the compactor checks whether a vacuum is due, which `vacuum_interval_hours` decides."""
    recovery_cron: str = "45 * * * *"
    """When the compactor finishes and sweeps what crashed processes left. Each cycle also does so first."""
    schedule_jitter_seconds: float = 10.0
    """Longest random delay of scheduled work, in seconds, so that many lakes do not start at once."""

    # Roles, leases and job processes
    role: Role = Role.ALL
    """Operations that this process may run: `all`, `compactor` (no rows are written) or `reader` (nothing is)."""
    lease_seconds: float = 60.0
    """Lifetime of a lease without a renewal, in seconds. A holder on another machine is replaced after this time."""
    stop_seconds: float = 30.0
    """Time in seconds that a stopping compactor waits for running work before it interrupts it."""
    jobs: JobPlace = JobPlace.AUTO
    """Place of jobs: `inline` on the Spark of this process, `worker` in processes with their own JVMs, or `auto`.

    `auto` means workers for a continuous compactor. Otherwise, and where `spark_remote` names a server, it means inline.
    """
    max_jobs: int = 2
    """Number of workers that run at once."""
    worker_memory_mb: int = 0
    """Heap of a worker's JVM in MB; 0 fits it to the machine and `max_jobs`."""
    worker_jobs: int = 100
    """Number of jobs after which a worker is replaced."""
    job_minutes: float = 60.0
    """Longest duration of one attempt of a job, in minutes. Then it is ended, and retried with half its files. 0: no limit."""

    # Queries
    max_rows: int = 1_000
    """Rows of an answer for which the caller sets no limit; 100,000 at most."""
    query_seconds: float = 300.0
    """Longest duration of a query, in seconds. Then it is ended. 0 means no limit."""
    query_pairs: int = 5_000_000_000
    """Most row pairs that a query on Spark may build from three or more datasets without an equality. 0: any number."""
    default_catalog: str = ""
    """Catalog of tables that a query names without one; empty means that every name has three parts."""
    default_schema: str = ""
    """Schema of tables that a query names without one; needs a default catalog, too."""

    # Hot cache and result cache
    hot_cache_mb: int = 0
    """Memory in MB for datasets in the hot cache. 0 means the smaller of 16 GB and a quarter of the machine's memory."""
    hot_query_mb: int = 1024
    """Memory in MB for all queries that the hot cache answers, in addition to its datasets."""
    hot_at_once_rows: int = 1_000_000
    """Largest total number of rows of datasets that are filled into the hot cache while a query waits."""
    result_cache_mb: int = 64
    """Memory in MB for the result cache, which is valid while the data stays the same; 0 turns it off."""

    # Spark
    spark_master: str = "local[*]"
    """The Spark master for a session that Siltstone starts itself."""
    spark_remote: str = ""
    """A Spark Connect address (``sc://host:port``); takes precedence over `spark_master`."""
    spark_shared: bool = True
    """Use of shared local Spark servers, which run in the background. Otherwise each process starts its own JVM."""
    spark_idle_minutes: float = 15.0
    """Time in minutes after which an unused shared Spark server, or an idle worker, ends."""
    spark_memory_mb: int = 0
    """Memory in MB of each driver JVM that Siltstone starts; 0 fits it to the machine."""
    spark_jars: str = ""
    """Folder with the Delta jars, and optionally a database driver; empty means the user cache."""
    scratch_dir: str = ""
    """Folder for Spark's spills and shuffles; empty means the system's folder for temporary files."""
    spark_short_run: bool = False
    """Start of the JVM with the quick compiler only: faster start, slower steady state."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings by their Spark names (in the user's ``silt.toml``: a table ``[spark]``)."""

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, for `from_plain` in another process."""
        return asdict(self) | {"spark": dict(self.spark)}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "Settings":
        """Return the settings of another process as they are. Unlike `load`, this checks no ranges."""
        kinds = {f.name: type(f.default) for f in fields(cls) if isinstance(f.default, StrEnum)}
        values: dict[str, Any] = {name: kinds[name](value) if name in kinds else value for name, value in data.items()}
        return cls(**values)

    @classmethod
    def load(
        cls,
        *,
        lake: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **arguments: Any,  # noqa: ANN401
    ) -> "Settings":
        """Build settings from arguments, the environment, the lake's ``silt.toml`` and the user's.

        Raises:
            InvalidRequest: a name is unknown, a value does not fit, or a lake's file contains a setting of scope `USER`.
            Unavailable: a file cannot be read, or other users can change the user's file.
        """
        environment = os.environ if environment is None else environment
        home = user_file(environment)
        variables = {name: ENV_PREFIX + name.upper() for name in sorted(_NAMES - {"spark"})}
        sources = [(str(home), _from_user_file(home))]
        if lake:
            sources.append((str(lake / CONFIG_FILE), _from_lake_file(lake / CONFIG_FILE)))
        sources += [(key, {name: environment[key]}) for name, key in variables.items() if key in environment]
        sources.append(("", arguments))
        values = {name: (source, value) for source, settings in sources for name, value in settings.items()}
        return cls(**{name: _fit_from(source, name, value) for name, (source, value) in values.items()})


_NAMES: Final = frozenset(f.name for f in fields(Settings))


def scope_of(name: str) -> SettingScope:
    """Return which files may contain a setting.

    >>> scope_of("tiers"), scope_of("spark")
    (<SettingScope.LAKE: 'lake'>, <SettingScope.USER: 'user'>)
    """
    return SettingScope.LAKE if name in LAKE_SETTINGS else SettingScope.USER


def user_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the user's own settings: below ``XDG_CONFIG_HOME``, else ``~/.config``; None without a home.

    >>> user_file({"XDG_CONFIG_HOME": "/x"}), user_file({"HOME": "/h"}), user_file({})
    (PosixPath('/x/siltstone/silt.toml'), PosixPath('/h/.config/siltstone/silt.toml'), None)
    """
    root, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    if Path(root).is_absolute():
        return Path(root) / "siltstone" / CONFIG_FILE
    return Path(home) / ".config" / "siltstone" / CONFIG_FILE if Path(home).is_absolute() else None


def _from_user_file(path: Path | None) -> dict[str, Any]:
    """Read the user's file. Refuse one that other users can change, because it decides what code Java runs."""
    if path is None or not os.access(path.parent, os.X_OK) or not (values := _from_file(path)):
        return {}  # a home folder that this process may not enter belongs to another user
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(
            f"{path} can be changed by other users, so it is not read. Make it yours alone: chmod 600 {path}."
        )
    return values


def _from_lake_file(path: Path) -> dict[str, Any]:
    """Read a lake's file. Refuse settings that belong to the user who opens the lake."""
    values = _from_file(path)
    foreign = sorted(name for name in values if name in _NAMES and scope_of(name) is SettingScope.USER)
    if foreign:
        raise InvalidRequest(
            f"{path} sets {', '.join(foreign)}. A lake's file may contain only settings of the lake, not those of the "
            "process that opens it. Move them to ~/.config/siltstone/silt.toml or the environment."
        )
    return values


def _from_file(path: Path) -> dict[str, Any]:
    """Return the settings in a file; empty if the file does not exist."""
    try:
        return tomllib.loads(path.read_text()) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not valid TOML: {error}. Fix or remove the file.") from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that have our prefix but are unknown, each with the most similar known one.

    >>> unknown_variables({"SILT_DURABEL": "no", "SILT_LAKE": "/lake"})
    {'SILT_DURABEL': 'SILT_DURABLE'}
    """
    accepted = {ENV_PREFIX + name.upper() for name in _NAMES - {"spark"}} | OTHER_VARIABLES
    unknown = sorted(name for name in environment if name.startswith(ENV_PREFIX) and name not in accepted)
    return {name: next(iter(difflib.get_close_matches(name, accepted, n=1)), None) for name in unknown}


def _fit_from(source: str, name: str, value: Any) -> Any:  # noqa: ANN401
    """Convert one value as `_fit` does. An error names the file or the variable that the value is from."""
    try:
        return _fit(name, value)
    except InvalidRequest as error:
        if not source:
            raise
        raise InvalidRequest(f"{source}: {error}") from error


def _fit(name: str, value: Any) -> Any:  # noqa: ANN401
    """Convert one value to the type of its default, or raise an error that names the accepted values."""
    if name not in _NAMES:
        similar = difflib.get_close_matches(name, _NAMES, n=1)
        advice = f"Did you mean {similar[0]}?" if similar else f"Known: {', '.join(sorted(_NAMES))}."
        raise InvalidRequest(f"Unknown setting {name!r}. {advice}")
    if name == "spark":
        return _fit_spark(value)
    if name == "tiers" and isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    kind = type(getattr(_DEFAULTS, name))
    try:
        fitted = parse_bool(value) if kind is bool else kind(value)
    except (TypeError, ValueError, OverflowError) as error:  # an int of infinity overflows
        raise InvalidRequest(f"Setting {name!r} must be {_WORDS[kind]}, not {value!r}.") from error
    if kind in (int, float):
        _check_number(name, value, fitted)
    if name.endswith("_cron") and (cron := str(fitted).strip()):  # empty means only on a trigger
        try:
            check_cron(cron)
        except InvalidRequest as error:
            raise InvalidRequest(f"Setting {name!r}: {error}") from error
    return fitted


def _check_number(name: str, value: Any, fitted: float) -> None:  # noqa: ANN401
    if isinstance(value, float) and value != fitted:
        raise InvalidRequest(f"Setting {name!r} must be a whole number, not {value!r}.")
    least = 1 if name in _AT_LEAST_ONE else 0
    if not least <= fitted <= _LARGEST:
        raise InvalidRequest(f"Setting {name!r} must be a number from {least} to {_LARGEST:,}, it is {value!r}.")


def _fit_spark(value: Any) -> dict[str, str]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"Setting 'spark' must be a table of Spark settings, not {value!r}.")
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= {f"{key}.{inner}": text for inner, text in _fit_spark(item).items()}
        else:
            flat[str(key)] = str(item).lower() if isinstance(item, bool) else str(item)
    return flat


def parse_bool(value: object) -> bool:
    """Return a bool from itself or from text.

    >>> parse_bool("yes"), parse_bool(False)
    (True, False)

    Raises:
        ValueError: the text means neither yes nor no.
    """
    match str(value).strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
        case _:
            raise ValueError(value)


_AT_LEAST_ONE: Final = {
    "checkpoint_interval_commits",
    "cycle_bytes",
    "idempotence_marks",
    "lease_seconds",
    "max_jobs",
    "max_rows",
    "target_file_bytes",
    "upsert_rows",
    "worker_jobs",
    "writer_queue_batches",
}
_WORDS: Final = {
    bool: "yes or no",
    int: "a whole number",
    float: "a number",
    str: "text",
    JobPlace: f"one of {', '.join(JobPlace)}",
    Role: f"one of {', '.join(Role)}",
}
_LARGEST: Final = 10**12
_DEFAULTS: Final = Settings()
