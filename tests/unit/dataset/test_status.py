"""The status of a dataset with broken files names them and all other facts; its rows still cannot be read."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from siltstone import Dataset, Lake
from siltstone.errors import Corruption, Reason, SiltstoneError
from tests.support.folds import fold_by_arrow
from tests.support.internals import store_of
from tests.support.tables import FAST

KEYED, LOG = "crm.sales.people", "web.eu.clicks"
AT = "2026-11-16T10:00:00Z"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=FAST) as opened:
        people = opened.create(KEYED, "id STRING NOT NULL, at TIMESTAMP", key="id")
        people.upsert([{"id": "base", "at": AT}])
        fold_by_arrow(people)
        clicks = opened.create(LOG, "id STRING NOT NULL, at TIMESTAMP NOT NULL", time="at", subject="id")
        for number in range(3):
            people.upsert([{"id": str(number), "at": AT}])
            clicks.append([{"id": str(number), "at": AT}])
        clicks.tombstone(["1"])
        yield opened


def overwritten(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def missing(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def changes(dataset: Dataset, which: int) -> str:
    return f"changes/{store_of(dataset).snapshot().unfolded[which].path}"


@pytest.mark.parametrize("damage", [overwritten, missing, emptied])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("name", [KEYED, LOG])
def test_a_broken_change_file_is_named_and_hides_nothing_else(
    lake: Lake, name: str, which: int, damage: Callable[[Path], None]
) -> None:
    dataset = lake.dataset(name)
    before, broken = dataset.status(), changes(dataset, which)
    assert before.unreadable == {}
    damage(dataset.path / broken)
    found = dataset.status()
    assert list(found.unreadable) == [broken]
    assert (damage is missing) == (found.unreadable_reasons[broken] is Reason.MISSING_FILE)
    assert (found.backlog_rows, found.backlog_files, found.rows_in_base) == (
        before.backlog_rows,
        before.backlog_files,
        before.rows_in_base,
    )
    assert found.oldest_unfolded_at is not None
    assert found.fold_files_at_most == found.base_files
    with pytest.raises(SiltstoneError):
        dataset.to_arrow()


def test_a_broken_page_is_found_when_it_is_read(lake: Lake) -> None:
    dataset = lake.dataset(LOG)
    broken = changes(dataset, -1)
    content = bytearray((dataset.path / broken).read_bytes())
    content[4:200] = bytes(196)
    (dataset.path / broken).write_bytes(content)
    assert list(dataset.status().unreadable) == [broken], "the estimate of a fold reads tombstones"
    with pytest.raises(Corruption):
        dataset.to_arrow()


@pytest.mark.parametrize("damage", [overwritten, missing, emptied])
def test_a_broken_file_of_base_is_named(lake: Lake, damage: Callable[[Path], None]) -> None:
    dataset = lake.dataset(KEYED)
    (file,) = store_of(dataset).snapshot().base.files
    damage(dataset.path / "base" / file.path)
    found = dataset.status()
    assert list(found.unreadable) == [f"base/{file.path}"]
    assert (found.rows_in_base, found.fold_files_at_most, found.backlog_rows) == (1, 1, 3)


def test_a_broken_log_is_an_error_and_no_status(lake: Lake) -> None:
    max((lake.dataset(LOG).path / "changes" / "_delta_log").glob("*.json")).write_text("")
    with pytest.raises(Corruption):
        lake.dataset(LOG).status()


def test_a_purge_still_refuses_to_delete_beside_a_file_that_is_missing(lake: Lake) -> None:
    dataset = lake.dataset(KEYED)
    path = changes(dataset, 0)
    missing(dataset.path / path)
    with pytest.raises(Corruption, match=path):
        dataset.compact_estimate()
