"""Backups in processes that are killed, and the contents of a restored lake."""

from pathlib import Path
from typing import Any

from siltstone.lake import Lake
from tests.support.tables import FAST

NAME = "a.b.people"
SCHEMA = "id BIGINT NOT NULL, n BIGINT"


def fill(path: str | Path, *, rows: int, start: int = 1) -> None:
    """Upsert row by row: after sequence s the row of key k has the newest n up to s with that key."""
    with Lake.open(path, settings=FAST) as lake:
        people = lake.create(NAME, SCHEMA, key="id")
        for number in range(start, start + rows):
            people.upsert([{"id": number % 7, "n": number}])


def expected(sequence: int) -> dict[int, int]:
    """Return the rows after a sequence."""
    return {number % 7: number for number in range(1, sequence + 1)}


def held(path: str | Path) -> tuple[int, dict[int, int]]:
    """Return the last sequence of a lake's dataset, and its rows."""
    with Lake.open(path, settings=FAST) as lake:
        people = lake.dataset(NAME)
        return people.status().sequence, {row["id"]: row["n"] for row in people.to_arrow().to_pylist()}


def backup(path: str, to: str, keep: int | None = None) -> dict[str, Any]:
    """Take a backup."""
    with Lake.open(path, settings=FAST) as lake:
        return lake.backup(to, keep=keep).to_dict()


def restore(path: str, target: str) -> dict[str, Any]:
    """Restore the newest backup."""
    return Lake.restore(path, target, settings=FAST).to_dict()
