"""A user who may not enter a folder of a lake gets one of our errors from every method, and changes nothing."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone.dataset.dataset import Dataset
from siltstone.errors import Unavailable
from siltstone.lake import Lake
from tests.support.tables import FAST

NAME = "a.b.c"
NOBODY = 65534
CALLS: dict[str, Callable[[Lake, Dataset], object]] = {
    "history": lambda _lake, people: people.history(),
    "status": lambda _lake, people: people.status(),
    "get": lambda _lake, people: people.get([1]),
    "upsert": lambda _lake, people: people.upsert([{"id": 2}]),
    "datasets": lambda lake, _people: lake.datasets(),
    "unregistered": lambda lake, _people: lake.unregistered(),
    "damages": lambda lake, _people: lake.damages(),
    "sweep": lambda lake, _people: lake.sweep(),
    "plan": lambda lake, _people: lake.plan(),
    "sql": lambda lake, _people: lake.sql(f"SELECT count(*) FROM {NAME}", engine="hot"),
    "create": lambda lake, _people: lake.create("x.y.z", "id BIGINT NOT NULL", key="id"),
    "drop": lambda lake, _people: lake.drop(NAME),
}


def made(root: Path) -> Path:
    with Lake.open(root, settings=FAST) as lake:
        people = lake.create(NAME, "id BIGINT NOT NULL", key="id")
        people.upsert([{"id": 1}])
        people.tombstone([1], actor="dpo", reason="17")
        lake.cache_directives.pin(NAME)
    return root


@contextlib.contextmanager
def as_another_user() -> Iterator[None]:
    """Act as a user who owns no files."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    "closed", ["", "_system", "_system/liveness", "_system/audit", "_system/datasets", "_system/hot/directives", "a"]
)
def test_every_error_in_a_denied_folder_is_a_siltstone_error(closed: str):
    with tempfile.TemporaryDirectory() as found:
        root = Path(found)
        root.chmod(0o755)
        warm = Lake.open(made(root / "warm"), settings=FAST)
        people = warm.dataset(NAME)
        for call in CALLS.values():  # imports the modules that the calls need, while they are readable
            call(warm, people)
        lake = Lake.open(made(root / "lake"), settings=FAST)
        people = lake.dataset(NAME)
        folder = root / "lake" / closed
        folder.chmod(0)
        refused: set[str] = set()
        try:
            with as_another_user():
                for name, call in CALLS.items():
                    try:
                        call(lake, people)
                    except Unavailable:
                        refused.add(name)
        finally:
            folder.chmod(0o755)
        if closed == "_system/hot/directives":
            assert "sql" not in refused
        assert refused >= {"create", "drop"}
        assert [info.name for info in Lake.open(root / "lake", settings=FAST).datasets()] == [NAME]
