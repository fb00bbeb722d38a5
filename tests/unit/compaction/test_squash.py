"""A squash merges change files without a visible change, also for a reader of a sequence inside its range."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from siltstone import Conflict, Dataset, Lake
from siltstone.compaction.operations.squash import prune_exactly
from siltstone.config import Settings
from siltstone.dataset.read.arrow_view import change_rows_in, latest_per_key, unfolded_rows
from siltstone.dataset.snapshot import Snapshot
from siltstone.failpoints import arm
from siltstone.model.columns import APP_PRUNE, OP, SEQ
from tests.support.folds import land, stage
from tests.support.internals import store_of

QUIET = Settings(durable=False, squash_files=0)
SCHEMA = "id BIGINT NOT NULL, n BIGINT, note STRING"


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Lake.open(tmp_path / "lake", settings=QUIET).create("a.b.c", SCHEMA, key="id")


def write(dataset: Dataset, batches: int, *, seed: int = 1, keys: int = 12) -> None:
    """Write batches of upserts and tombstones with repeated keys."""
    rng = random.Random(seed)
    for number in range(batches):
        chosen = rng.choices(range(keys), k=rng.randrange(1, 6))
        if rng.random() < 0.3:
            dataset.tombstone(chosen, actor="dpo", reason=f"request {number}")
        else:
            dataset.upsert([{"id": key, "n": rng.randrange(100), "note": f"batch {number}"} for key in chosen])


def seen(dataset: Dataset) -> list[Any]:
    """Return the results of every read."""
    return [
        by_id(dataset.to_arrow()),
        by_id(dataset.to_arrow(raw=True)),
        by_id(dataset.head(100)),
        sorted(dataset.tombstones(), key=lambda row: row["id"]),
        dataset.status().sequence,
        dataset.status().backlog_batches,
    ]


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return list(table.sort_by("id").to_pylist())


def live(dataset: Dataset) -> int:
    return dataset.status().backlog_files


def test_nothing_that_a_reader_sees_changes(dataset: Dataset):
    write(dataset, 40)
    before = seen(dataset)
    report = dataset.squash()
    assert (report.files_removed, report.files_added, live(dataset)) == (40, 1, 1)
    assert report.rows_after < report.rows_before
    assert seen(dataset) == before


def test_squashed_files_are_squashed_again_with_later_ones(dataset: Dataset):
    for turn in range(3):
        write(dataset, 10, seed=turn)
        before = seen(dataset)
        dataset.squash()
        assert live(dataset) == 1
        assert seen(dataset) == before


def at(dataset: Dataset, snapshot: Snapshot, watermark: int) -> pa.Table:
    """Return the last change of each key above a watermark, as a fold up to there would leave it."""
    rows = unfolded_rows(store_of(dataset), replace(snapshot, watermark=watermark))
    return latest_per_key(rows, dataset.key).select(["id", "n", "note", OP, SEQ]).sort_by("id")


def test_a_watermark_inside_a_squashed_range_hides_exactly_the_folded_rows(dataset: Dataset):
    write(dataset, 20)
    before = [at(dataset, dataset.snapshot(), watermark) for watermark in range(20)]
    dataset.squash()
    assert [at(dataset, dataset.snapshot(), watermark) for watermark in range(20)] == before


def test_a_reader_of_an_older_snapshot_still_sees_its_rows(dataset: Dataset):
    write(dataset, 10)
    old = dataset.snapshot()
    before = at(dataset, old, 0)
    dataset.squash()
    assert at(dataset, old, 0) == before


def test_of_two_squashes_at_once_one_commits(dataset: Dataset, tmp_path: Path):
    write(dataset, 10)
    before = seen(dataset)
    other = Lake.open(tmp_path / "lake", settings=QUIET).dataset("a.b.c")

    def squash_first(_: str) -> None:
        assert other.squash().files_removed == 10

    with arm("squash.after_write", squash_first), pytest.raises(Conflict):
        dataset.squash()
    assert live(dataset) == 1
    assert seen(dataset) == before
    assert len(list(dataset.path.glob("changes/data/*/squashed-*.parquet"))) == 1


def test_a_large_batch_is_left_for_the_fold_and_nothing_is_squashed_across_it(tmp_path: Path):
    settings = replace(QUIET, squash_bytes=40_000)
    dataset = Lake.open(tmp_path / "lake", settings=settings).create("a.b.c", SCHEMA, key="id")
    write(dataset, 3)
    dataset.upsert([{"id": i, "n": i * i, "note": random.Random(i).randbytes(8).hex()} for i in range(5000)])
    write(dataset, 5, seed=2)
    before = seen(dataset)
    assert dataset.squash().files_removed == 5
    assert live(dataset) == 5
    assert dataset.squash().files_removed == 3
    assert seen(dataset) == before


def test_a_writer_squashes_by_itself_when_there_are_many(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=replace(QUIET, squash_files=8)) as lake:
        dataset = lake.create("a.b.c", SCHEMA, key="id")
        write(dataset, 64)
        before = seen(dataset)
    assert live(dataset) < 30
    assert seen(dataset) == before


def test_fewer_than_two_files_are_not_squashed(dataset: Dataset):
    assert dataset.squash().files_removed == 0
    write(dataset, 1)
    assert dataset.squash().files_removed == 0
    assert live(dataset) == 1


def mixed(dataset: Dataset) -> None:
    """Fold 20 batches while a squash merges them with 10 newer ones."""
    write(dataset, 20)
    store = store_of(dataset)
    planned, rows = store.snapshot(), dataset.to_arrow()
    write(dataset, 10, seed=2)
    assert dataset.squash().files_added == 1
    land(store, planned, (stage(store, store.base, rows, {}),), with_prune=True)


def first_sequence(dataset: Dataset) -> int:
    store = store_of(dataset)
    return int(min(change_rows_in(store, store.snapshot().unfolded).column(SEQ).to_pylist()))


def test_an_exact_prune_leaves_only_unfolded_rows_and_changes_no_answer(dataset: Dataset):
    mixed(dataset)
    before = by_id(dataset.to_arrow())
    assert first_sequence(dataset) <= 20
    prune_exactly(store_of(dataset))
    after = store_of(dataset).snapshot()
    assert (after.watermark, after.changes.transactions[APP_PRUNE]) == (20, 20)
    assert first_sequence(dataset) > 20
    assert by_id(dataset.to_arrow()) == before
    prune_exactly(store_of(dataset))
    assert store_of(dataset).changes.version() == after.changes.version  # no job was left


def test_an_exact_prune_that_a_squash_overtakes_starts_over(dataset: Dataset):
    mixed(dataset)

    def merge_first(_: str) -> None:
        write(dataset, 3, seed=3)
        assert dataset.squash().files_added == 1

    with arm("squash.after_write", merge_first):
        prune_exactly(store_of(dataset))
    assert (first_sequence(dataset) > 20, dataset.status().sequence) == (True, 33)
