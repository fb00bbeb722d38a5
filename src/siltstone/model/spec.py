"""The specification of a dataset: what `create` fixed, stored in the registry and as properties of `base`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from siltstone.errors import InvalidRequest

FORMAT_VERSION: Final = 1
"""The layout of a dataset on disk. A higher one was written by a newer Siltstone and is refused."""
PROPERTY_SPEC: Final = "siltstone.spec"
PROPERTY_FORMAT: Final = "siltstone.format"
PROPERTY_ROLE: Final = "siltstone.role"
PROPERTY_DROPPED: Final = "siltstone.dropped"


class Kind(StrEnum):
    """The two kinds of dataset."""

    KEYED = "keyed"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a dataset is, apart from its columns."""

    kind: Kind = Kind.KEYED
    key: tuple[str, ...] = ()
    subject: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Read stored text; a newer format is refused with a clear error."""
        raw: dict[str, Any] = json.loads(text)
        check_format(raw.get("format_version", 0))
        return cls(
            kind=Kind(raw["kind"]),
            key=tuple(raw["key"]),
            subject=tuple(raw["subject"]),
            format_version=raw["format_version"],
        )

    def to_properties(self, *, role: str) -> dict[str, str]:
        """Return the table properties that let the registry be rebuilt from the folders."""
        return {PROPERTY_SPEC: self.to_json(), PROPERTY_FORMAT: str(self.format_version), PROPERTY_ROLE: role}


def check_format(version: int | str) -> None:
    """Refuse a format that this code does not know.

    Raises:
        InvalidRequest: the data was written by a newer Siltstone.
    """
    if int(version) > FORMAT_VERSION:
        raise InvalidRequest(
            f"This lake has format version {version}; this Siltstone reads up to {FORMAT_VERSION}. Upgrade Siltstone."
        )


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse a table whose stored format is newer."""
    check_format(properties.get(PROPERTY_FORMAT, FORMAT_VERSION))


def as_names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Take one name or several.

    >>> as_names("id"), as_names(["a", "b"]), as_names(None)
    (('id',), ('a', 'b'), ())
    """
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
