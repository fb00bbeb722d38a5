"""Duplicates in a log, without Spark: which row survives, tombstones, and refused logs."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.errors import Conflict, InvalidRequest
from siltstone.model.spec import DEDUP_FORMAT, LOG_FORMAT, Spec
from tests.support.clicks import Oracle, as_counter, click, create
from tests.support.refusals import refused

COLUMNS = ("at", "visitor", "account", "region")
SURVIVORS = ("first", "last")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False, squash_files=0)) as opened:
        yield opened


def make(lake: Lake, survivor: str = "first") -> tuple[Dataset, Oracle]:
    return create(lake, dedup_by=list(COLUMNS), survivor=survivor), Oracle(dedup_by=COLUMNS, survivor=survivor)


def check(log: Dataset, oracle: Oracle) -> None:
    assert as_counter(log.to_arrow()) == as_counter(oracle.rows)
    assert as_counter(log.head(1000)) == as_counter(oracle.rows)
    assert as_counter(log.to_arrow(raw=True)) == as_counter(oracle.raw)


@pytest.mark.parametrize("survivor", SURVIVORS)
def test_the_survivor_is_chosen_by_sequence_and_then_by_position_in_the_batch(lake: Lake, survivor: str) -> None:
    log, oracle = make(lake, survivor)
    for batch in ([click(1, n=10), click(1, n=11), click(2)], [click(1, n=12)], [click(3), click(2, n=20)]):
        log.append(batch)
        oracle.append(batch)
    check(log, oracle)
    assert {row["n"] for row in oracle.rows} == ({10, 2, 3} if survivor == "first" else {12, 20, 3})


@pytest.mark.parametrize("survivor", SURVIVORS)
def test_null_equals_null(lake: Lake, survivor: str) -> None:
    log, oracle = make(lake, survivor)
    rows = [click(0, visitor=None, region=None, n=n) for n in range(3)]
    log.append(rows)
    oracle.append(rows)
    check(log, oracle)
    assert len(oracle.rows) == 1


@pytest.mark.parametrize("survivor", SURVIVORS)
def test_a_hidden_row_does_not_make_a_later_one_a_duplicate(lake: Lake, survivor: str) -> None:
    log, oracle = make(lake, survivor)
    log.append([click(1, n=1)])
    oracle.append([click(1, n=1)])
    log.tombstone([{"visitor": "V-1"}])
    oracle.tombstone([{"visitor": "V-1"}])
    check(log, oracle)
    log.append([click(1, n=2)])
    oracle.append([click(1, n=2)])
    check(log, oracle)
    assert [row["n"] for row in oracle.rows] == [2]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_match_a_list_in_python(lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    log, oracle = make(lake, SURVIVORS[seed % 2])
    for number in range(20):
        if chance.random() < 0.2:
            named = [{"visitor": f"V-{chance.randrange(5)}"}]
            log.tombstone(named)
            oracle.tombstone(named)
        elif chance.random() < 0.15:
            log.squash()
        else:
            rows = [click(chance.randrange(8), n=number * 10 + place) for place in range(chance.randrange(1, 5))]
            log.append(rows)
            oracle.append(rows)
        check(log, oracle)


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        (["visitor", "account", "region"], ("at",)),
        (["at", "visitor", "account"], ("region",)),
        (["at", "region"], ("visitor, account",)),
        (["at", "region", "visitor", "account", "nothing"], ("'nothing'",)),
        (["at", "at"], ("'at'",)),
    ],
)
def test_dedup_columns_that_could_separate_duplicates_are_rejected(
    lake: Lake, columns: list[str], facts: tuple[str, ...]
) -> None:
    with refused(InvalidRequest, None, *facts):
        create(lake, dedup_by=columns)
    assert lake.datasets() == []


def test_invalid_dedup_options_are_rejected(lake: Lake) -> None:
    with refused(InvalidRequest, None, "'newest'", "survivor"):
        create(lake, dedup_by=list(COLUMNS), survivor="newest")
    with pytest.raises(InvalidRequest, match="dedup_by"):
        create(lake, survivor="last")
    with pytest.raises(InvalidRequest, match="keyed"):
        lake.create("web.eu.people", "id STRING", key="id", dedup_by="id")
    with pytest.raises(InvalidRequest, match="'x'"):
        lake.create("web.eu.floats", "at TIMESTAMP, x DOUBLE", time="at", dedup_by=["at", "x"])


def test_info_shows_the_dedup_options_and_others_are_a_conflict(lake: Lake) -> None:
    log, _ = make(lake, "last")
    assert (log.info().dedup_by, log.info().survivor) == (COLUMNS, "last")
    assert make(lake, "last")[0].info().incarnation == log.info().incarnation
    with refused(Conflict, None, "survivor", "last", "first"):
        make(lake, "first")
    with pytest.raises(Conflict):
        create(lake)
    assert Spec.from_json(log.spec.to_json()) == log.spec
    assert log.spec.format_version == DEDUP_FORMAT
    plain = create(lake, name="web.eu.plain")
    assert plain.spec.format_version == LOG_FORMAT
    assert not {"dedup_by", "survivor", "cluster_by"} & set(plain.spec.to_json().replace('"', " ").split())


def test_followers_see_every_append(lake: Lake) -> None:
    log, _ = make(lake)
    log.append([click(1, n=1)])
    log.append([click(1, n=2)])
    assert [row["n"] for row in log.changes_to_arrow(since=0).to_pylist()] == [1, 2]
