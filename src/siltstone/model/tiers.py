"""Tiers: the rules by which files of closed periods are rolled up, as data.

A tier merges files of its `source` granularity, and of every finer one, into periods of its `target` granularity. That
is the same or a coarser one. A later roll-up therefore also merges the files that late rows left in finer periods.

Defaults are changed by name, for a lake and then for a dataset: ``{"daily": {"min_files": 6}, "weekly": {"enabled":
true}}``. A new name adds a tier and needs every field that has no default. In the text of a setting, this is the same
mapping as JSON, or ``daily.min_files=6; weekly.enabled=yes``. Ages are seconds or text (``90m``, ``24h``, ``7d``).
Sizes are bytes or text (``512MB``); a KB has 1,024 bytes.

Every function raises InvalidRequest for a change that cannot be parsed, does not fit, or contradicts another one.
"""

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final

from siltstone.config import parse_bool
from siltstone.cron import check_cron
from siltstone.errors import InvalidRequest
from siltstone.model.periods import Granularity
from siltstone.model.units import BYTES_PER_MB

HOUR_SECONDS: Final = 3_600
DAY_SECONDS: Final = 24 * HOUR_SECONDS
DEFAULT_MAX_FILES: Final = 30
FEWEST_FILES_PER_JOB: Final = 2
MOST_FILES_PER_JOB: Final = 500
"""Limit of `max_files`, because a job that opens more files needs more memory than it saves time."""
OLDEST_SECONDS: Final = 100 * 366 * DAY_SECONDS
LARGEST_BYTES: Final = 1024**5
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_RESERVED: Final = frozenset({"all", "cluster", "events", "fold", "purge", "recovery", "roll_up", "squash", "vacuum"})
"""Names that a tier cannot have, because they name kinds of jobs where tiers are chosen by name."""
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_AGE_SECONDS: Final = {"s": 1, "m": 60, "h": HOUR_SECONDS, "d": DAY_SECONDS}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])i?b", re.IGNORECASE)
_SIZE_BYTES: Final = {"k": 1024, "m": BYTES_PER_MB, "g": 1024 * BYTES_PER_MB, "t": 1024**2 * BYTES_PER_MB}

Changes = Mapping[str, Mapping[str, Any]]
"""Fields that differ from the defaults, by name of the tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One roll-up rule: which files, their minimum age and number, the size of written files, and its schedule."""

    name: str
    source: Granularity
    target: Granularity
    min_age_seconds: int
    """Minimum age of a period after its end, in seconds."""
    min_files: int
    """Minimum number of files that this tier did not write."""
    target_bytes: int
    """Size of a written file, in bytes. A file of half this size is left alone unless it moves to a coarser period."""
    max_files: int = DEFAULT_MAX_FILES
    """Most files of one job."""
    cron: str
    enabled: bool = True
    quiet_seconds: int = 0
    """Minimum age of the newest file that added rows, in seconds. 0 means no check."""
    quiet_until_seconds: int = 7 * DAY_SECONDS
    """Age after the end of a period, in seconds, from which `quiet_seconds` is no longer checked."""

    def __post_init__(self) -> None:
        """Refuse a tier that contradicts itself."""
        for fits, what in _rules(self):
            if not fits:
                raise InvalidRequest(f"Tier {self.name!r}: {what}.")
        try:
            check_cron(self.cron)
        except InvalidRequest as error:
            raise InvalidRequest(f"Tier {self.name!r}: {error}") from error

    @property
    def small_bytes(self) -> int:
        """Size in bytes below which a file is small."""
        return -(-self.target_bytes // 2)

    def to_dict(self) -> dict[str, Any]:
        """Return the tier as plain data."""
        return asdict(self)


def _rules(tier: Tier) -> Iterable[tuple[bool, str]]:
    """Yield the rules for a tier: whether each holds, and its error message."""
    source, target = tier.source, tier.target
    yield (
        _NAME.fullmatch(tier.name) is not None,
        "the name must be 1 to 32 lower-case letters, digits, '-' or '_', and begin with a letter",
    )
    yield tier.name not in _RESERVED, f"the name must be none of {', '.join(sorted(_RESERVED))}"
    yield (
        target.rank >= source.rank,
        f"the target ({target}) is finer than the source ({source}); name a target of the same length or a longer one",
    )
    for name in ("min_age_seconds", "quiet_seconds", "quiet_until_seconds"):
        age = getattr(tier, name)
        yield 0 <= age <= OLDEST_SECONDS, f"{name} must be from 0 to {OLDEST_SECONDS:,}, it is {age:,}"
    yield (
        FEWEST_FILES_PER_JOB <= tier.max_files <= MOST_FILES_PER_JOB,
        f"max_files must be from {FEWEST_FILES_PER_JOB} to {MOST_FILES_PER_JOB}, it is {tier.max_files:,}",
    )
    yield (
        tier.min_files >= FEWEST_FILES_PER_JOB,
        f"min_files must be at least {FEWEST_FILES_PER_JOB}, it is {tier.min_files:,}; one file alone cannot become fewer",
    )
    yield (
        tier.min_files <= tier.max_files,
        f"min_files ({tier.min_files}) is above max_files ({tier.max_files}); lower min_files or raise max_files",
    )
    yield (
        BYTES_PER_MB <= tier.target_bytes <= LARGEST_BYTES,
        f"target_bytes must be from {BYTES_PER_MB:,} (1 MB) to {LARGEST_BYTES:,}, it is {tier.target_bytes:,}",
    )


DEFAULT_TIERS: Final = (
    Tier(
        name="hourly",
        source=Granularity.HOUR,
        target=Granularity.HOUR,
        min_age_seconds=HOUR_SECONDS,
        min_files=10,
        target_bytes=512 * BYTES_PER_MB,
        cron="5 * * * *",
    ),
    Tier(
        name="daily",
        source=Granularity.HOUR,
        target=Granularity.DAY,
        min_age_seconds=24 * HOUR_SECONDS,
        min_files=12,
        target_bytes=2_048 * BYTES_PER_MB,
        cron="0 3 * * *",
        quiet_seconds=24 * HOUR_SECONDS,
    ),
    Tier(
        name="weekly",
        source=Granularity.DAY,
        target=Granularity.WEEK,
        min_age_seconds=2 * DAY_SECONDS,
        min_files=7,
        target_bytes=2_048 * BYTES_PER_MB,
        cron="0 4 * * 3",
        enabled=False,
    ),
    Tier(
        name="monthly",
        source=Granularity.WEEK,
        target=Granularity.MONTH,
        min_age_seconds=3 * DAY_SECONDS,
        min_files=12,
        target_bytes=2_048 * BYTES_PER_MB,
        cron="0 5 8 * *",
    ),
)
"""Default tiers, from the finest to the coarsest target."""


def changed(tiers: Iterable[Tier], changes: Changes) -> tuple[Tier, ...]:
    """Return tiers with fields changed by name of the tier, followed by new tiers.

    >>> [(tier.name, tier.min_files) for tier in changed(DEFAULT_TIERS[:2], {"daily": {"min_files": 6}})]
    [('hourly', 10), ('daily', 6)]
    """
    by_name = {tier.name: tier.to_dict() for tier in tiers}
    for name, values in changes.items():
        if not isinstance(values, Mapping):
            raise InvalidRequest(f"Tier {name!r} takes a mapping of its fields, not {values!r}.")
        by_name[name] = by_name.get(name, {}) | dict(values)
    unchanged = [name for name in by_name if name not in changes]
    return check_tiers(_tier(name, values, others=unchanged) for name, values in by_name.items())


def check_tiers(tiers: Iterable[Tier]) -> tuple[Tier, ...]:
    """Return the tiers. Refuse two of the same name, and two enabled ones that do the same work."""
    tiers = tuple(tiers)
    twice = [name for name, count in Counter(tier.name for tier in tiers).items() if count > 1]
    if twice:
        raise InvalidRequest(f"Tier {twice[0]!r} exists twice; give each tier its own name.")
    owner: dict[Granularity, Tier] = {}
    for tier in tiers:
        if not tier.enabled:
            continue
        other = owner.setdefault(tier.target, tier)
        if other is not tier:
            raise InvalidRequest(
                f"Tiers {other.name!r} and {tier.name!r} both write {tier.target} periods; disable one of them."
            )
    return tiers


def tiers_from_text(text: str) -> tuple[Tier, ...]:
    """Return the default tiers with the changes in a setting's text. Empty text changes nothing.

    >>> [tier.name for tier in tiers_from_text("weekly.enabled=yes; hourly.enabled=no") if tier.enabled]
    ['daily', 'weekly', 'monthly']
    """
    return changed(DEFAULT_TIERS, changes_from_text(text))


def changes_from_text(text: str) -> Changes:
    """Parse changes of tiers: a mapping as JSON, or ``name.field=value`` separated by ``;``."""
    if text.lstrip().startswith("{"):
        try:
            parsed: dict[str, Any] = json.loads(text)
        except (ValueError, RecursionError) as error:  # not JSON, a number of thousands of digits, or nested too deeply
            raise InvalidRequest(f"The changes of tiers are not valid JSON: {error}. Correct the text.") from error
        return parsed
    changes: dict[str, dict[str, Any]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        where, equals, value = part.partition("=")
        name, dot, field = where.strip().partition(".")
        if not (equals and dot and name and field):
            raise InvalidRequest(f"{part[:80]!r} changes no tier; write e.g. daily.min_files=6; weekly.enabled=yes.")
        if field in changes.setdefault(name, {}):
            raise InvalidRequest(f"Tier {name!r}: {field} is set twice; keep one of them.")
        changes[name][field] = value.strip()
    return changes


def age_text(seconds: int) -> str:
    """Return an age in the text form of a change: exact, in the largest unit that fits.

    >>> age_text(3600), age_text(172_800), age_text(5400), age_text(0)
    ('1h', '2d', '90m', '0s')
    """
    return _in_units(seconds, _AGE_SECONDS)


def exact_size_text(size_bytes: int) -> str:
    """Return a size in the text form of a change: exact, in the largest unit that fits.

    >>> exact_size_text(512 * BYTES_PER_MB), exact_size_text(2048 * BYTES_PER_MB), exact_size_text(3 * BYTES_PER_MB + 1)
    ('512MB', '2GB', '3145729')
    """
    return _in_units(size_bytes, {"": 1, **{f"{unit.upper()}B": size for unit, size in _SIZE_BYTES.items()}})


def _in_units(count: int, units: Mapping[str, int]) -> str:
    size, unit = max((size, unit) for unit, size in units.items() if size == 1 or (count and count % size == 0))
    return f"{count // size}{unit}"


def _tier(name: str, values: Mapping[str, Any], *, others: Iterable[str] = ()) -> Tier:
    names = {field.name for field in fields(Tier)}
    unknown = sorted(set(values) - names)
    if unknown:
        raise InvalidRequest(f"Tier {name!r} has no field {unknown[0]!r}. Known: {', '.join(sorted(names))}.")
    if values.get("name", name) != name:
        raise InvalidRequest(f"Tier {name!r} cannot be renamed to {values['name']!r}; disable it and add a new one.")
    missing = [f.name for f in fields(Tier) if f.default is MISSING and f.name not in values and f.name != "name"]
    if missing:
        near = difflib.get_close_matches(name, list(others), n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidRequest(f"Tier {name!r} is new and needs {', '.join(missing)}.{meant}")
    fitted: dict[str, Any] = {}
    for field, value in values.items():
        if field != "name":
            read, words = _READERS[field]
            try:
                fitted[field] = read(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidRequest(f"Tier {name!r}: {field} takes {words}, not {value!r}.") from error
    return Tier(name=name, **fitted)


def _whole(value: Any) -> int:  # noqa: ANN401
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value)


def _with_unit(shape: re.Pattern[str], units: Mapping[str, int]) -> Callable[[Any], int]:
    def read(value: Any) -> int:  # noqa: ANN401
        match = shape.fullmatch(value.strip()) if isinstance(value, str) else None
        return round(float(match[1]) * units[match[2].lower()]) if match else _whole(value)

    return read


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_GRANULARITY: Final = (Granularity, "hour, day, week or month")
_COUNT: Final = (_whole, "a whole number")
_AGE_READER: Final = (_with_unit(_AGE, _AGE_SECONDS), "seconds, or an age such as 90m, 24h or 7d")
_READERS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "source": _GRANULARITY,
    "target": _GRANULARITY,
    "min_age_seconds": _AGE_READER,
    "quiet_seconds": _AGE_READER,
    "quiet_until_seconds": _AGE_READER,
    "min_files": _COUNT,
    "max_files": _COUNT,
    "target_bytes": (_with_unit(_SIZE, _SIZE_BYTES), "bytes, or a size such as 512MB"),
    "cron": (_text, "text"),
    "enabled": (parse_bool, "yes or no"),
}
