"""Races of processes: creates, drops, writers, rewriters and cleaners at once."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from siltstone.compaction.operations import squash
from siltstone.dataset.dataset import Dataset
from siltstone.delta.checkpoints import write_checkpoint
from siltstone.errors import Conflict, Gone, NotFound
from siltstone.failpoints import arm
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ
from tests.support.internals import store_of
from tests.support.processes import (
    Pool,
    append_for,
    checkpoint_and_clean_for,
    cluster_for,
    create_dataset_in_process,
    create_table_in_process,
    recreate_for,
    write_while_recreated,
)
from tests.support.tables import FAST, append, ids, make_table, open_table, repeated, state

SCHEMA = "id BIGINT NOT NULL, tag STRING"


# ---- create ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [2, 8])
def test_of_many_creates_of_one_table_exactly_one_wins(tmp_path: Path, pool: Pool, processes: int):
    for turn in range(5):
        path = tmp_path / f"t{turn}"
        answers = pool.at_once([(create_table_in_process, path)] * processes)
        assert sorted(answers) == ["Conflict"] * (processes - 1) + ["created"]
        assert append(open_table(path), 1).version == 1


def incarnations(root: Path) -> list[str]:
    folder = root / "a" / "b" / "c"
    return sorted(item.name for item in folder.iterdir()) if folder.is_dir() else []


def test_eight_creates_of_one_dataset_in_a_new_lake_make_one_incarnation(tmp_path: Path, pool: Pool):
    for turn in range(3):
        root = tmp_path / f"lake{turn}"
        answers = pool.at_once([(create_dataset_in_process, root, SCHEMA)] * 8)
        assert len(set(answers)) == 1, answers
        assert incarnations(root) == [answers[0]]
        assert Lake.open(root, settings=FAST).dataset("a.b.c").info().incarnation == answers[0]


def test_of_creates_with_different_schemas_one_wins_and_the_others_conflict(tmp_path: Path, pool: Pool):
    root = tmp_path / "lake"
    schemas = [f"id BIGINT NOT NULL, column_{number} STRING" for number in range(8)]
    answers = pool.at_once([(create_dataset_in_process, root, schema) for schema in schemas])
    assert answers.count("Conflict") == 7, answers
    winner = next(name for name in answers if name != "Conflict")
    assert incarnations(root) == [winner]
    columns = Lake.open(root, settings=FAST).dataset("a.b.c").schema.names
    assert columns == ["id", f"column_{answers.index(winner)}"]


# ---- drop ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    found = Lake.open(tmp_path / "lake", settings=FAST)
    found.create("a.b.c", SCHEMA, key="id").upsert([{"id": 1}])
    return found


CALLS = {
    "upsert": lambda people: people.upsert([{"id": 2}]),
    "tombstone": lambda people: people.tombstone([1]),
    "to_arrow": lambda people: people.to_arrow(),
    "tombstones": lambda people: people.tombstones(),
    "status": lambda people: people.status(),
    "compact": lambda people: people.compact(),
    "vacuum": lambda people: people.vacuum(),
}


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_handle_of_a_dropped_dataset_is_gone_for_every_call(lake: Lake, call: str, *, recreated: bool):
    opened, unused = lake.dataset("a.b.c"), lake.dataset("a.b.c")
    opened.to_arrow()
    lake.drop("a.b.c")
    if recreated:
        lake.create("a.b.c", SCHEMA, key="id")
    for people in (opened, unused, opened):
        with pytest.raises(Gone):
            CALLS[call](people)
    if recreated:
        assert lake.dataset("a.b.c").to_arrow().num_rows == 0


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("place", ["upsert.after_stage", "commit.before_entry", "commit.after_draft"])
def test_a_write_beside_a_drop_is_gone_and_lands_nowhere(lake: Lake, place: str, *, recreated: bool):
    people, other = lake.dataset("a.b.c"), Lake.open(lake.path, settings=FAST)

    def drop(_place: str) -> None:
        other.drop("a.b.c")
        if recreated:
            other.create("a.b.c", SCHEMA, key="id")

    with arm(place, drop), pytest.raises(Gone):
        people.upsert([{"id": 2}])
    if recreated:
        assert other.dataset("a.b.c").to_arrow().num_rows == 0


def test_a_write_whose_dataset_is_dropped_before_it_is_staged_is_gone(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    people, other = lake.dataset("a.b.c"), Lake.open(lake.path, settings=FAST)
    check, looks = store_of(people).changes.check_there, []

    def drop_after_first_look() -> None:
        check()
        looks.append(1)
        if len(looks) == 1:
            other.drop("a.b.c")

    monkeypatch.setattr(store_of(people).changes, "check_there", drop_after_first_look)
    with pytest.raises(Gone):
        people.upsert([{"id": 2}])
    assert looks == [1]


def test_a_drop_waits_for_a_checkpoint_and_its_folder_is_not_created_again(lake: Lake):
    store = store_of(lake.dataset("a.b.c"))
    dropping = threading.Thread(target=lambda: Lake.open(lake.path, settings=FAST).drop("a.b.c"))

    def drop(_place: str) -> None:
        dropping.start()
        dropping.join(1)
        assert (store.path / "changes").is_dir(), "the drop took the folder from under the checkpoint"

    with arm("checkpoint.before_write", drop):
        write_checkpoint(store.changes.path, durable=False)
    dropping.join(30)
    assert not store.path.exists()


@pytest.mark.parametrize("recreated", [False, True])
def test_a_squash_beside_a_drop_is_gone_and_its_folder_is_not_created_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, recreated: bool
):
    people, other = lake.dataset("a.b.c"), Lake.open(lake.path, settings=FAST)
    people.upsert([{"id": 2}])
    store, rows = store_of(people), squash.squashed_rows

    def drop(*args: Any) -> Any:  # noqa: ANN401
        other.drop("a.b.c")
        if recreated:
            other.create("a.b.c", SCHEMA, key="id")
        return rows(*args)

    monkeypatch.setattr(squash, "squashed_rows", drop)
    with pytest.raises(Gone):
        squash.squash(store, many=2)
    assert not store.path.exists()


@pytest.mark.parametrize("relative", ["data", "data/owner", Path("data/owner/0")])
def test_no_folder_for_staged_files_is_created_in_a_dropped_dataset(lake: Lake, relative: str | Path):
    store = store_of(lake.dataset("a.b.c"))
    assert store.base.make_folder(relative) == store.base.path / relative
    with pytest.raises(FileExistsError):
        store.base.make_folder(relative, exist_ok=False)
    lake.drop("a.b.c")
    with pytest.raises(Gone):
        store.base.make_folder(relative)
    assert not store.path.exists()


def test_a_failed_checkpoint_after_a_commit_fails_no_write_whose_folder_was_dropped(lake: Lake):
    store = store_of(Lake.open(lake.path, settings=FAST).dataset("a.b.c"))  # it has not read the log yet
    shutil.rmtree(store.path)
    store.note_commit(store.changes, 1)


def test_a_dropped_dataset_is_not_found_and_its_folder_is_removed(lake: Lake):
    folder = lake.dataset("a.b.c").path
    lake.drop("a.b.c")
    assert not folder.exists()
    with pytest.raises(NotFound):
        lake.dataset("a.b.c")
    with pytest.raises(NotFound):
        lake.drop("a.b.c")


def test_a_recreated_dataset_is_another_one(lake: Lake):
    first = lake.dataset("a.b.c").info().incarnation
    lake.drop("a.b.c")
    assert lake.create("a.b.c", "id BIGINT NOT NULL", key="id").info().incarnation != first
    with pytest.raises(Conflict):
        lake.create("a.b.c", SCHEMA, key="id")


def tags(people: Dataset) -> set[str]:
    return set(people.to_arrow().column("tag").to_pylist())


def test_nothing_is_ever_written_into_another_incarnation(tmp_path: Path, pool: Pool):
    """Writers tag each row with the incarnation they opened; other processes drop and create the dataset repeatedly."""
    root = tmp_path / "lake"
    Lake.open(root, settings=FAST).create("a.b.c", SCHEMA, key="id")
    recreations = writes = 0
    for seconds in (2.0, 8.0, 32.0):  # on a loaded machine little happens in two seconds
        answers = pool.at_once(
            [(recreate_for, root, seconds)] * 2 + [(write_while_recreated, root, writer, seconds) for writer in (1, 2)]
        )
        assert [text for _, texts in answers for text in texts] == []
        recreations += sum(made for made, _ in answers[:2])
        writes += sum(len(written) for written, _ in answers[2:])
        if recreations > 2 and writes > 0:
            break
    assert recreations > 2
    assert writes > 0
    for people in _left(root):
        assert tags(people) <= {people.info().incarnation}


def _left(root: Path) -> list[Dataset]:
    try:
        return [Lake.open(root, settings=FAST).dataset("a.b.c")]
    except NotFound:
        return []


# ---- stress ----------------------------------------------------------------------------------------------------------


def stress(path: Path, pool: Pool, *, appenders: int, clusterers: int, cleaners: int, seconds: float) -> bool:
    """Append, rewrite and clean concurrently; afterwards every acknowledged row exists exactly once.

    True if all of them committed, and two rewriters of the same files met. On a loaded machine they may not.
    """
    make_table(path)
    tasks: list[tuple[object, ...]] = [(append_for, path, writer, seconds) for writer in range(1, appenders + 1)]
    tasks += [(cluster_for, path, seconds)] * clusterers
    tasks += [(checkpoint_and_clean_for, path, seconds)] * cleaners
    answers = pool.at_once(tasks)
    acknowledged = [pair for pairs in answers[:appenders] for pair in pairs]
    clusterings = answers[appenders : appenders + clusterers]
    cleanings = answers[appenders + clusterers :]

    found = ids(path)
    assert repeated(found) == []
    assert found == sorted(number for number, _ in acknowledged)
    sequences = sorted(sequence for _, sequence in acknowledged)
    assert sequences == list(range(1, len(acknowledged) + 1))
    assert state(path).transactions[APP_SEQ] == len(acknowledged)
    for writer in range(1, appenders + 1):
        mine = [sequence for number, sequence in acknowledged if number // 1_000_000 == writer]
        assert mine == sorted(mine)
    landed, conflicts = (sum(counts) for counts in zip(*clusterings, strict=True))
    return bool(landed and conflicts and sum(done for done, _ in cleanings))


def test_appends_survive_rewrites_and_cleaning_in_other_processes(tmp_path: Path, pool: Pool):
    assert any(
        stress(tmp_path / f"t{seconds}", pool, appenders=4, clusterers=2, cleaners=1, seconds=seconds)
        for seconds in (4.0, 16.0, 64.0)
    )


@pytest.mark.deep
def test_appends_survive_a_long_time_of_rewrites_and_cleaning(tmp_path: Path):
    pool = Pool(12)
    try:
        assert stress(tmp_path / "t", pool, appenders=8, clusterers=2, cleaners=2, seconds=60.0)
    finally:
        pool.close()
