"""Tables of one dataset from different times: refused by readers and writers until they are repaired."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from siltstone.compaction.operations.commit import prune
from siltstone.compaction.operations.squash import squash
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.table_invariants import check_gapless
from siltstone.dataset.table_repair import damage_of, raise_sequence
from siltstone.delta.layout import LOG, entry_name
from siltstone.errors import Conflict, Corruption
from siltstone.lake import Lake
from siltstone.model.columns import APP_SEQ, SEQ
from siltstone.model.files import DataFile
from siltstone.model.names import DatasetName
from siltstone.model.reports import Ack
from tests.support.folds import fold_by_arrow
from tests.support.internals import parts_of, store_of
from tests.support.refusals import refused
from tests.support.tables import FAST, checkpoint_and_forget

NAME = DatasetName.parse("a.b.c")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        lake.create(str(NAME), "id BIGINT NOT NULL", key="id")
    return tmp_path / "lake"


def opened(root: Path) -> Dataset:
    return Lake.open(root, settings=FAST).dataset(str(NAME))


def rows(dataset: Dataset) -> list[int]:
    return sorted(dataset.to_arrow().column("id").to_pylist())


def write(dataset: Dataset, *ids: int) -> None:
    for number in ids:
        dataset.upsert([{"id": number}])


def put_back(copy: Path, table: Path) -> None:
    shutil.rmtree(table)
    shutil.copytree(copy, table)


def every_use(dataset: Dataset) -> Sequence[Callable[[], object]]:
    """Return every way to read, write and compact that needs no Spark."""
    return (
        dataset.to_arrow,
        dataset.status,
        lambda: dataset.get([1]),
        lambda: dataset.upsert([{"id": 9}]),
        lambda: dataset.tombstone([1]),
        lambda: dataset.changes_to_arrow(since=0),
        lambda: squash(store_of(dataset), many=2),
    )


def changes_before_base(root: Path, tmp_path: Path) -> Dataset:
    """Copy changes, write and fold, copy base, then restore both."""
    people = opened(root)
    write(people, 1, 2)
    shutil.copytree(people.path / "changes", tmp_path / "changes")
    write(people, 3, 4)
    fold_by_arrow(people)
    shutil.copytree(people.path / "base", tmp_path / "base")
    put_back(tmp_path / "changes", people.path / "changes")
    put_back(tmp_path / "base", people.path / "base")
    return people


@pytest.mark.parametrize("same_handle", [True, False])
def test_changes_that_are_older_than_base_are_refused_and_nothing_is_written(
    root: Path, tmp_path: Path, *, same_handle: bool
):
    people = changes_before_base(root, tmp_path)
    people = people if same_handle else opened(root)
    for use in every_use(people):
        with pytest.raises(Corruption):
            use()
    assert sorted(path.name for path in (people.path / "changes" / LOG).iterdir()) == [entry_name(n) for n in range(3)]
    assert len(list((people.path / "changes" / "data").iterdir())) == 2, "the refused batches leave no files"


def test_raising_the_sequence_repairs_older_changes_and_the_next_write_is_seen(root: Path, tmp_path: Path):
    changes_before_base(root, tmp_path)
    people = opened(root)
    found = damage_of(parts_of(people).store)
    assert found is not None
    assert found.repairable
    assert raise_sequence(parts_of(people).store) == 4
    assert damage_of(parts_of(people).store) is None
    assert rows(people) == [1, 2, 3, 4]
    assert people.upsert([{"id": 5}]) == Ack(sequence=5, rows=1)
    assert rows(opened(root)) == [1, 2, 3, 4, 5]
    fold_by_arrow(people)
    assert rows(opened(root)) == [1, 2, 3, 4, 5]


def test_a_dataset_that_is_sound_is_not_repaired(root: Path):
    people = opened(root)
    write(people, 1, 2)
    fold_by_arrow(people)
    assert damage_of(store_of(people)) is None
    with pytest.raises(Conflict):
        raise_sequence(store_of(people))
    assert store_of(people).changes.pin(APP_SEQ).transactions == {APP_SEQ: 2}


@pytest.mark.parametrize("same_handle", [True, False])
def test_a_base_that_is_older_than_what_was_pruned_is_refused(root: Path, tmp_path: Path, *, same_handle: bool):
    people = opened(root)
    write(people, 1)
    fold_by_arrow(people)
    shutil.copytree(people.path / "base", tmp_path / "base")
    write(people, 2, 3)
    fold_by_arrow(people)
    put_back(tmp_path / "base", people.path / "base")
    people = people if same_handle else opened(root)
    for use in every_use(people):
        with pytest.raises(Corruption):
            use()
    found = damage_of(parts_of(people).store)
    assert found is not None
    assert not found.repairable
    with pytest.raises(Conflict):
        raise_sequence(parts_of(people).store)


def test_a_base_that_is_older_but_not_pruned_for_is_read_with_all_its_changes(root: Path, tmp_path: Path):
    people = opened(root)
    write(people, 1)
    fold_by_arrow(people)
    shutil.copytree(people.path / "base", tmp_path / "base")
    write(people, 2, 3)
    fold_by_arrow(people, with_prune=False)
    put_back(tmp_path / "base", people.path / "base")
    assert rows(opened(root)) == [1, 2, 3]
    assert opened(root).upsert([{"id": 4}]).sequence == 4


def test_a_write_beside_a_fold_and_a_prune_is_not_refused(root: Path, monkeypatch: pytest.MonkeyPatch):
    """The watermark is read before the commit lock; later prunes are above it, and base is read again."""
    people, other = opened(root), opened(root)
    write(people, 1, 2)
    store = store_of(people)
    real = store.base.newest
    answers: list[int | None] = []

    def newest(app: str) -> int | None:
        answers.append(real(app))
        if len(answers) == 1:
            fold_by_arrow(other)
        return answers[-1]

    monkeypatch.setattr(store.base, "newest", newest)
    assert people.upsert([{"id": 3}]).sequence == 3
    assert answers == [None, 2, 2]
    assert rows(people) == [1, 2, 3]


def test_a_reader_whose_base_is_folded_after_changes_was_opened_is_not_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    people, other = opened(root), opened(root)
    write(people, 1)
    store = store_of(people)
    real = store.base.pin

    def pin(*apps: str) -> object:
        write(other, 2)
        fold_by_arrow(other)
        monkeypatch.setattr(store.base, "pin", real)
        return real(*apps)

    monkeypatch.setattr(store.base, "pin", pin)
    snapshot = store.snapshot()
    assert (snapshot.watermark, snapshot.changes.transactions[APP_SEQ]) == (2, 1)


def test_a_lost_checkpoint_line_is_noticed_by_the_gap_it_leaves(root: Path):
    """A change file is missing from the log, whatever the cause."""
    people = opened(root)
    write(people, 1, 2, 3)
    checkpoint_and_forget(people.path / "changes")
    lost = next(file for file in store_of(people).changes.files() if file.partition[SEQ] == "2")
    _forget(people.path / "changes", lost.path)
    with pytest.raises(Corruption, match=r"\b2\b"):
        opened(root).to_arrow()


def _forget(table: Path, path: str) -> None:
    """Remove the row of one added file from a table's only checkpoint."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    [checkpoint] = (table / LOG).glob("*.checkpoint.parquet")
    found = pq.read_table(checkpoint)
    keep = [added is None or added["path"] != path for added in found.column("add").to_pylist()]
    pq.write_table(found.filter(pa.array(keep)), checkpoint)
    [checksum] = (table / LOG).glob("*.crc32")
    checksum.unlink()  # as if the checkpoint was written without that line


def change_file(number: int, *, squashed: bool = False) -> DataFile:
    name = f"data/x{number}/squashed-x{number}.parquet" if squashed else f"data/x{number}.parquet"
    return DataFile(path=name, size_bytes=1, rows=1, partition={SEQ: str(number)})


@pytest.mark.parametrize(
    ("plain", "squashed", "watermark", "sequence", "missing"),
    [
        ((1, 2, 3), (), 0, 3, None),
        ((3, 2), (), 1, 3, None),
        ((1, 2, 3), (), 3, 3, None),
        ((), (), 5, 3, None),
        ((), (), 0, 0, None),
        ((5, 6), (4,), 0, 6, None),
        ((5,), (4,), 2, 5, None),
        ((1,), (3, 6), 0, 6, None),
        ((1, 3), (), 0, 3, (2,)),
        ((2, 3), (), 0, 3, (1,)),
        ((1, 2), (), 0, 3, (3,)),
        ((), (), 0, 3, (1, 3)),
        ((6,), (4,), 0, 6, (5,)),
        ((1, 7), (4,), 0, 7, (5, 6)),
        ((1, 2), (), 0, 1, (2,)),
    ],
)
def test_every_sequence_above_the_watermark_is_in_a_file_or_a_squash(
    plain: tuple[int, ...], squashed: tuple[int, ...], watermark: int, sequence: int, missing: tuple[int, ...] | None
):
    files = [*map(change_file, plain), *(change_file(number, squashed=True) for number in squashed)]
    if missing is None:
        check_gapless(NAME, files, watermark=watermark, sequence=sequence)
        return
    with refused(Corruption, None, *missing):
        check_gapless(NAME, files, watermark=watermark, sequence=sequence)


def test_squashes_folds_and_prunes_leave_no_gap(root: Path):
    people = opened(root)
    write(people, 1, 2, 3)
    squash(store_of(people), many=2)
    write(people, 4, 5)
    fold_by_arrow(people, with_prune=False)
    write(people, 6, 7)
    squash(store_of(people), many=2)
    prune(store_of(people))
    write(people, 8)
    assert rows(opened(root)) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_lake_lists_the_damage_of_its_tables_and_repairs_it(root: Path, tmp_path: Path):
    changes_before_base(root, tmp_path)
    with Lake.open(root, settings=FAST) as lake:
        [damage] = lake.damages()
        assert (damage.kind.value, damage.subject, damage.repairable) == ("tables", str(NAME), True)
        lake.repair(damage)
        assert lake.damages() == []
        assert rows(lake.dataset(str(NAME))) == [1, 2, 3, 4]
        with pytest.raises(Conflict):
            lake.repair(damage)
