"""What one process asks of the one that holds the lease, and what it is answered. Plain values."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from siltstone.errors import InvalidRequest

MAX_REQUEST_BYTES: Final = 1024 * 1024
"""A request names datasets and works; more than this is none of ours."""


class Ask(StrEnum):
    """What is asked for."""

    CYCLE = "cycle"
    COMPACT = "compact"
    SQUASH = "squash"
    CLUSTER = "cluster"
    VACUUM = "vacuum"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What somebody wants done: a cycle, one kind of work on datasets, or that the holder stops."""

    ask: Ask
    names: tuple[str, ...] | None = None
    """The datasets; None means all."""
    only: tuple[str, ...] | None = None
    force: bool = False
    purge: bool = False
    """Of `Ask.COMPACT`: also delete from disk what is no longer part of the datasets."""
    by: tuple[str, ...] = ()
    """Of `Ask.CLUSTER`: the columns; each dataset's own unless told."""
    retention_hours: float | None = None
    """Of `Ask.VACUUM`: what is kept; as the settings of whoever does it say unless told."""

    @property
    def what(self) -> str:
        """What is asked for, in a word."""
        return "purge" if self.purge else str(self.ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish, and who has it. The id is also the name of the presence that its requester holds."""

    id: str
    wish: Wish
    machine: str
    host: str
    pid: int
    asked_at: str

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        """Read it from text that anybody may have written.

        Raises:
            InvalidRequest: it is none.
        """
        try:
            found = json.loads(text)
            wish = found.pop("wish")
            return cls(
                wish=_wish(wish),
                **{name: _text(name, value) for name, value in found.items() if name != "pid"},
                pid=int(found["pid"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"This is no request: {error}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request: one result for each job or dataset, or why there is none."""

    id: str
    cycle: int | None = None
    results: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None
    error_kind: str | None = None
    error_reason: str | None = None

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> "Answer":
        """Read it.

        Raises:
            InvalidRequest: it is none.
        """
        try:
            found = json.loads(text)
            return cls(**{**found, "results": tuple(found["results"])})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidRequest(f"This is no answer: {error}.") from error


def _wish(found: Mapping[str, Any]) -> Wish:
    return Wish(
        ask=Ask(found["ask"]),
        names=_names(found["names"]),
        only=_names(found["only"]),
        force=_yes_or_no("force", found["force"]),
        purge=_yes_or_no("purge", found["purge"]),
        by=_names(found.get("by")) or (),
        retention_hours=None if found.get("retention_hours") is None else float(found["retention_hours"]),
    )


def _names(found: Any) -> tuple[str, ...] | None:  # noqa: ANN401
    if isinstance(found, str):
        raise TypeError(f"{found[:80]!r} is no list of names")
    return None if found is None else tuple(_text("name", one) for one in found)


def _yes_or_no(name: str, value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):  # a text such as "no" must not become a purge
        raise TypeError(f"{name} is neither true nor false")
    return value


def _text(name: str, value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value
