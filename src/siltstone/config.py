"""Settings: frozen, parsed once at the edge, passed down as a value.

A setting comes from, in this order: an argument of `Settings.load`, the environment (``SILT_`` and the upper-case
name), the lake's ``silt.toml``, the default below. `docs/settings.md` explains each one; a test keeps it complete.
"""

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from siltstone.cron import check_cron
from siltstone.errors import InvalidRequest

CONFIG_FILE: Final = "silt.toml"
ENV_PREFIX: Final = "SILT_"
OTHER_VARIABLES: Final = frozenset({"SILT_LAKE", "SILT_FAILPOINT"})
"""Variables that are read and are no settings: the lake of the command, and where tests crash."""


class Role(StrEnum):
    """What a process is for; `model.roles` says what each may do."""

    ALL = "all"
    COMPACTOR = "compactor"
    READER = "reader"


class JobPlace(StrEnum):
    """Where the jobs of a cycle are done."""

    AUTO = "auto"
    INLINE = "inline"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. Units are the last word of a name."""

    durable: bool = True
    """fsync every file, entry and directory before a write is acknowledged."""
    commit_timeout_seconds: float = 60.0
    """How long a commit is retried against other writers before Unavailable."""
    writer_queue_batches: int = 50
    """How many batches may wait for one table in one process before a caller has to wait."""
    checkpoint_interval_commits: int = 10
    """Commits between checkpoints; a table with more than 10,000 live files waits longer."""
    base_retention_hours: float = 168.0
    """How long `base` keeps log entries and removed files, for readers of old versions."""
    changes_retention_hours: float = 0.25
    """How long `changes` and the system tables keep log entries and removed files: at least the longest snapshot."""
    producer_retention_days: float = 7.0
    """How long the last sequence of an idempotent producer, and a file that was loaded, are remembered."""
    arrow_changes_rows: int = 200_000
    """Up to this many unfolded rows reach Spark as one Arrow table; more are read by the executors."""
    squash_files: int = 32
    """From this many small change files on, a writing process squashes them in the background; 0 turns that off."""
    squash_bytes: int = 16 * 1024 * 1024
    """The most bytes that one squash brings together; larger change files are left for the fold."""
    positions_from_rows: int = 2_000_000
    """From this many base rows on, reads hide changed rows by their position, which is found once for each state."""
    upsert_rows: int = 1_000_000
    """The largest batch of dicts, Arrow or pandas rows in one call; more belongs into `ingest` or a Spark frame."""
    lookup_cache_mb: int = 256
    """Memory for what `get` has read, shared by all datasets of a lake; 0 keeps nothing."""
    target_file_bytes: int = 128 * 1024 * 1024
    """The size of a base file that a load or a fold aims at."""
    vacuum_floor_hours: float = 1.0
    """The shortest retention a plain vacuum accepts."""
    vacuum_interval_hours: float = 24.0
    """How long after a vacuum the compactor plans the next one; it also does after a clustering. 0 turns that off."""
    vacuum_retention_hours: float = 24.0
    """How long a file that was removed stays readable before the compactor's vacuum deletes it."""
    fold_batches: int = 64
    """From this many unfolded batches on a fold is planned; 0 does not look at it."""
    fold_share: float = 0.01
    """From this share of the base's rows in unfolded changes on a fold is planned; 0 does not look at it."""
    fold_minutes: float = 15.0
    """When the oldest unfolded batch is this old a fold is planned; 0 does not look at it."""
    event_log_files: int = 32
    """From this many small files of an event log on they are brought together; 0 turns that off."""
    cluster_bytes: int = 1024 * 1024 * 1024
    """From this many bytes that are not clustered on a clustering is planned; 0 turns that off."""
    cluster_share: float = 0.2
    """Which share of a period or base must not be clustered before a clustering is planned."""
    cycle_bytes: int = 64 * 1024 * 1024 * 1024
    """How many bytes one cycle of compaction may rewrite; a job that is larger runs alone."""
    jobs: JobPlace = JobPlace.AUTO
    """Where jobs run: `inline`, on the Spark of this process, `worker`, in processes with JVMs of their own, or `auto`: workers
    for a compactor that goes on, inline otherwise and where `spark_remote` names a server."""
    max_jobs: int = 2
    """How many workers are there at once."""
    worker_memory_mb: int = 0
    """The heap of a worker's JVM; 0 fits it to the machine and `max_jobs`."""
    worker_jobs: int = 100
    """A worker is replaced after this many jobs."""
    job_minutes: float = 60.0
    """The longest that one attempt of a job may take; then it is ended, and tried with half its files. 0 means no limit."""
    tiers: str = ""
    """Changes of tiers by name: ``daily.min_files=6; weekly.enabled=yes`` (in ``silt.toml``: tables ``[tiers.daily]``)."""
    fold_cron: str = "* * * * *"
    """When the compactor looks for folds, in UTC; empty means only when it is asked. The thresholds decide what is done."""
    squash_cron: str = "* * * * *"
    """When it looks for small change files."""
    events_cron: str = "*/10 * * * *"
    """When it looks at the lake's event log."""
    cluster_cron: str = "30 * * * *"
    """When it looks for what is to be clustered."""
    vacuum_cron: str = "20 * * * *"
    """When it looks whether a vacuum is due, which `vacuum_interval_hours` decides."""
    recovery_cron: str = "45 * * * *"
    """When it finishes and sweeps what crashed processes left; it also does so when it takes the lease."""
    stop_seconds: float = 30.0
    """How long a compactor that is told to stop waits for what runs to end before it interrupts it."""
    max_rows: int = 1_000
    """Rows that a query returns unless told otherwise; 100,000 at most."""
    query_seconds: float = 300.0
    """How long a query may take; then it is ended. 0 means no limit."""
    query_pairs: int = 5_000_000_000
    """How many pairs of rows a query on Spark may compare at a stretch where nothing equal joins its tables; 0 means any."""
    default_catalog: str = ""
    """The catalog of tables that a query names without one; empty means that every name has three parts."""
    default_schema: str = ""
    """The schema of tables that a query names without one; needs a default catalog, too."""
    hot_cache_mb: int = 0
    """Memory for datasets in the hot cache; 0 means the smaller of 16 GB and a quarter of the machine's memory."""
    hot_query_mb: int = 1024
    """Memory for the queries that the hot cache answers, all together, beside its datasets."""
    hot_at_once_rows: int = 1_000_000
    """Datasets that are not in the hot cache, and have no more rows than this together, are filled while a query waits."""
    result_cache_mb: int = 64
    """Memory for answers that are given again while the data stays the same; 0 keeps none."""
    role: Role = Role.ALL
    """What this process may do: `all`, `compactor` (no rows are written) or `reader` (nothing is)."""
    lease_seconds: float = 60.0
    """How long a lease lasts without a renewal; a holder on another machine is replaced after this time."""
    schedule_jitter_seconds: float = 10.0
    """Scheduled work starts up to this much after its time, so that many lakes do not start at once."""
    spark_master: str = "local[*]"
    """The Spark master for a session that Siltstone starts itself."""
    spark_remote: str = ""
    """A Spark Connect address (``sc://host:port``); wins over `spark_master`."""
    spark_memory_mb: int = 0
    """Memory of the driver JVM that Siltstone starts; 0 fits it to the machine."""
    spark_jars: str = ""
    """A folder with the Delta jars, and a database driver if there is one; empty means the user cache."""
    spark_shared: bool = True
    """Share one local Spark server among processes, in the background; if not, each process starts a JVM of its own."""
    spark_idle_minutes: float = 15.0
    """How long the shared Spark server stays when nobody uses it."""
    spark_short_run: bool = False
    """Start the JVM with the quick compiler only: faster start, slower steady state."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Any further Spark settings by their Spark names (in ``silt.toml``: a table ``[spark]``)."""

    @classmethod
    def load(
        cls,
        *,
        lake: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **given: Any,  # noqa: ANN401
    ) -> "Settings":
        """Build settings from arguments, the environment and the lake's ``silt.toml``.

        Raises:
            InvalidRequest: a name is unknown or a value does not fit.
        """
        values: dict[str, Any] = {}
        path = lake / CONFIG_FILE if lake else None
        if path and path.is_file():
            values |= _from_file(path)
        values |= _from_environment(os.environ if environment is None else environment)
        values |= given
        return cls(**{name: _fit(name, value) for name, value in values.items()})


def _names() -> frozenset[str]:
    return frozenset(f.name for f in fields(Settings))


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not valid TOML: {error}. Mend or remove the file.") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(_names() - {"spark"}):
        text = environment.get(ENV_PREFIX + name.upper())
        if text is not None:
            found[name] = text
    return found


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that look like ours and are not, each with the known one nearest to it.

    >>> unknown_variables({"SILT_DURABEL": "no", "SILT_LAKE": "/lake"})
    {'SILT_DURABEL': 'SILT_DURABLE'}
    """
    known = {ENV_PREFIX + name.upper() for name in _names() - {"spark"}} | OTHER_VARIABLES
    unknown = sorted(name for name in environment if name.startswith(ENV_PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), None) for name in unknown}


def _fit(name: str, value: Any) -> Any:  # noqa: ANN401
    """Bring one value into the type of its default, or say clearly that it does not fit."""
    if name not in _names():
        raise InvalidRequest(f"Unknown setting {name!r}. Known: {', '.join(sorted(_names()))}.")
    if name == "spark":
        return _fit_spark(value)
    if name == "tiers" and isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    kind = type(getattr(_DEFAULTS, name))
    try:
        fitted = _to_bool(value) if kind is bool else kind(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"Setting {name!r} takes {_WORDS[kind]}, not {value!r}.") from error
    if kind in (int, float):
        _check_number(name, value, fitted)
    if name.endswith(_CRON):
        _check_cron(name, str(fitted).strip())
    return fitted


def _check_cron(name: str, text: str) -> None:
    try:
        if text:  # an empty one: only when it is asked for
            check_cron(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"Setting {name!r}: {error}") from error


def _check_number(name: str, given: Any, fitted: float) -> None:  # noqa: ANN401
    if isinstance(given, float) and given != fitted:
        raise InvalidRequest(f"Setting {name!r} takes a whole number, not {given!r}.")
    if fitted < 0:
        raise InvalidRequest(f"Setting {name!r} must not be negative, it is {given!r}.")
    least = 1 if name in _AT_LEAST_ONE else 0
    if not least <= fitted <= _LARGEST:
        raise InvalidRequest(f"Setting {name!r} must be a number from {least} to {_LARGEST:,}, it is {given!r}.")


def _fit_spark(value: Any) -> dict[str, str]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"Setting 'spark' takes a table of Spark settings, not {value!r}.")
    flat: dict[str, str] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= {f"{key}.{inner}": text for inner, text in _fit_spark(item).items()}
        else:
            flat[str(key)] = str(item).lower() if isinstance(item, bool) else str(item)
    return flat


def _to_bool(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, bool):
        return value
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
_CRON: Final = "_cron"
_LARGEST: Final = 10**12
_DEFAULTS: Final = Settings()
