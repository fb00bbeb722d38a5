"""The specification of a dataset, fixed by `create`. It is stored in the registry and as properties of `base`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from siltstone.errors import InvalidRequest

FORMAT_VERSION: Final = 3
"""Newest layout on disk that this code supports. A higher one was written by a newer Siltstone and is refused."""
FIRST_FORMAT: Final = 1
"""Layout of keyed datasets, registries and event logs."""
LOG_FORMAT: Final = 2
"""Layout of log datasets, so that an older Siltstone does not treat them as keyed datasets."""
DEDUP_FORMAT: Final = 3
"""Layout of logs that drop duplicates, because an older Siltstone would show and keep them."""
MOST_CLUSTER_COLUMNS: Final = 4
"""Most columns of a clustering, because each further column makes the order less useful for the others."""
PROPERTY_SPEC: Final = "siltstone.spec"
PROPERTY_FORMAT: Final = "siltstone.format"
PROPERTY_ROLE: Final = "siltstone.role"
PROPERTY_DROPPED: Final = "siltstone.dropped"


class Kind(StrEnum):
    """The two kinds of dataset."""

    KEYED = "keyed"
    LOG = "log"


class Survivor(StrEnum):
    """Which of several duplicates in a log survives: by sequence, then by position in the batch, never by a clock."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The definition of a dataset, apart from its columns.

    A keyed dataset has a key. A log has a time column, and defines how its files are partitioned and sorted. Rows of
    a log that are equal in `dedup_by` are duplicates, of which one survives.
    """

    kind: Kind = Kind.KEYED
    key: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    time: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    dedup_by: tuple[str, ...] = ()
    survivor: Survivor = Survivor.FIRST
    format_version: int = FIRST_FORMAT

    @property
    def is_log(self) -> bool:
        """True for a log dataset."""
        return self.kind is Kind.LOG

    @property
    def found_by(self) -> tuple[str, ...]:
        """The lookup columns: the key, or the subject of a log. Files have bloom filters on them."""
        return self.subject if self.is_log else self.key

    @property
    def clustered_by(self) -> tuple[str, ...]:
        """The columns that a clustering orders rows by. Default: the time, the first partition and the sort columns.

        A keyed dataset has none, because its files are sorted by key and folds rely on that.
        """
        if self.time is None:
            return ()
        usual = dict.fromkeys((self.time, *self.partition_by[:1], *self.sort_by))
        return self.cluster_by or tuple(usual)[:MOST_CLUSTER_COLUMNS]

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that are never null, even if a given schema allows it."""
        return self.key if self.time is None else (self.time,)

    def to_json(self) -> str:
        """Return the stored text. That of a keyed dataset has no fields of logs.

        Fields that were added later are left out if they are empty, so that older texts do not change.
        """
        values = asdict(self)
        if not self.dedup_by:
            del values["survivor"]
        omitted = {name for name in _LATER if not values[name]} | (frozenset() if self.is_log else _OF_LOGS)
        return json.dumps({name: values[name] for name in values if name not in omitted}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Parse stored text. Refuse a newer format with a clear error."""
        raw: dict[str, Any] = json.loads(text)
        check_format(raw.get("format_version", 0))
        return cls(
            kind=Kind(raw["kind"]),
            key=tuple(raw["key"]),
            subject=tuple(raw["subject"]),
            time=raw.get("time"),
            partition_by=tuple(raw.get("partition_by", ())),
            sort_by=tuple(raw.get("sort_by", ())),
            cluster_by=tuple(raw.get("cluster_by", ())),
            dedup_by=tuple(raw.get("dedup_by", ())),
            survivor=Survivor(raw.get("survivor", Survivor.FIRST)),
            format_version=raw["format_version"],
        )

    def to_properties(self, *, role: str) -> dict[str, str]:
        """Return the table properties that let the registry be rebuilt from the folders."""
        return {PROPERTY_SPEC: self.to_json(), PROPERTY_FORMAT: str(self.format_version), PROPERTY_ROLE: role}


_OF_LOGS: Final = frozenset({"time", "partition_by", "sort_by"})
_LATER: Final = ("cluster_by", "dedup_by")


def make_spec(  # one parameter for each thing that `create` fixes
    *,
    key: tuple[str, ...],
    subject: tuple[str, ...],
    time: str | None,
    partition_by: tuple[str, ...],
    sort_by: tuple[str, ...],
    cluster_by: tuple[str, ...] = (),
    dedup_by: tuple[str, ...] = (),
    survivor: str | None = None,
) -> Spec:
    """Return the specification of a keyed dataset or of a log. The default sort order of a log is its time.

    InvalidRequest for both a key and a time, for neither, or for an option of logs for a keyed dataset.
    """
    if bool(key) == (time is not None):
        raise InvalidRequest("Name at least one key column, or the time column of a log (time=); one of the two.")
    if time is not None:
        return Spec(
            kind=Kind.LOG,
            subject=subject,
            time=time,
            partition_by=partition_by,
            sort_by=sort_by or (time,),
            cluster_by=cluster_by,
            dedup_by=dedup_by,
            survivor=_survivor(survivor, dedup_by),
            format_version=DEDUP_FORMAT if dedup_by else LOG_FORMAT,
        )
    if partition_by or sort_by or cluster_by:
        raise InvalidRequest(
            "A keyed dataset is sorted by its key; partition_by, sort_by and cluster_by are for logs (time=)."
        )
    if dedup_by or survivor is not None:
        raise InvalidRequest("A keyed dataset keeps one row for each key; dedup_by and survivor are for logs (time=).")
    return Spec(key=key, subject=subject)


def _survivor(value: str | None, dedup_by: tuple[str, ...]) -> Survivor:
    if value is None:
        return Survivor.FIRST
    if not dedup_by:
        raise InvalidRequest(
            "survivor says which of several duplicates stays; name the columns of a duplicate (dedup_by)."
        )
    if value not in tuple(Survivor):
        raise InvalidRequest(f"survivor is one of {', '.join(Survivor)}, not {value!r}.")
    return Survivor(value)


def check_format(version: int | str) -> None:
    """Refuse the format of a newer Siltstone with InvalidRequest."""
    if int(version) > FORMAT_VERSION:
        raise InvalidRequest(
            f"This lake has format version {version}; this Siltstone reads up to {FORMAT_VERSION}. Upgrade Siltstone."
        )


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse a table whose stored format is newer."""
    check_format(properties.get(PROPERTY_FORMAT, FIRST_FORMAT))


def as_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name or several as a tuple.

    >>> as_names("id"), as_names(["a", "b"]), as_names(None)
    (('id',), ('a', 'b'), ())
    """
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
