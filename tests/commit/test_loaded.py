"""Loaded files are recorded in the commit that loads them: once, for a time, in any state of the log."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.clock import SystemClock
from siltstone.dataset.dataset import Dataset
from siltstone.dataset.load.loaded_files import apps_of, hash_files, loaded_before
from siltstone.dataset.write.change_writer import Batch
from siltstone.dataset.write.idempotency_marks import forget_oldest
from siltstone.dataset.write.row_conversion import change_rows
from siltstone.errors import InvalidRequest
from siltstone.lake import Lake
from siltstone.model.columns import Op
from siltstone.model.reports import Ack
from tests.support.internals import current_parts, staged_file, store_of
from tests.support.tables import FAST, checkpoint_and_forget


@dataclass(frozen=True, slots=True)
class Later(SystemClock):
    """A clock that is a few days ahead."""

    days: float = 0

    def now(self) -> datetime.datetime:
        return SystemClock().now() + datetime.timedelta(days=self.days)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Lake.open(tmp_path / "lake", settings=FAST) as lake:
        lake.create("a.b.c", "id BIGINT NOT NULL", key="id")
    return tmp_path / "lake"


def opened(root: Path, *, days: float = 0) -> Dataset:
    return Lake.open(root, settings=FAST, clock=Later(days=days)).dataset("a.b.c")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load(dataset: Dataset, *files: Path) -> Ack:
    """Commit one row as a batch that was loaded from these files."""
    parts = current_parts(dataset)
    batch_id = parts.store.clock.new_id()
    rows = change_rows(
        pa.table({"id": [1]}),
        op=Op.UPSERT,
        schema=parts.store.change_schema,
        batch_id=batch_id,
        written_at=parts.store.clock.now(),
    )
    staged = staged_file(parts.writer, rows, f"data/{batch_id}.parquet")
    return parts.writer.submit(Batch(files=(staged,), rows=1, loaded=apps_of(hash_files(files))))


def known(dataset: Dataset, *files: Path) -> set[Path]:
    return set(loaded_before(store_of(dataset), hash_files(files)))


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_file_is_known_by_its_bytes_to_every_handle(root: Path, tmp_path: Path, *, cleaned: bool):
    first, other = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    assert load(opened(root), first).sequence == 1
    if cleaned:
        opened(root).upsert([{"id": 2}])
        checkpoint_and_forget(opened(root).path / "changes")
    assert known(opened(root), first, other) == {first}
    assert known(opened(root), write(tmp_path / "copy", "one")) == {tmp_path / "copy"}
    assert known(opened(root), write(first, "changed")) == set()


def test_a_batch_of_which_one_file_was_loaded_is_not_applied_and_leaves_nothing(root: Path, tmp_path: Path):
    shared, own = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    load(opened(root), shared)
    late = opened(root)
    assert load(late, own, shared) == Ack(sequence=None, rows=1, applied=False)
    assert known(late, own) == set()
    assert late.status().unreferenced_files == 0
    assert late.status().sequence == 1


@pytest.mark.parametrize("days", [-9, 9, 1000])
def test_no_clock_makes_a_file_be_forgotten(root: Path, tmp_path: Path, days: float):
    file = write(tmp_path / "a", "one")
    load(opened(root, days=-days), file)
    checkpoint_and_forget(opened(root).path / "changes")
    assert known(opened(root, days=days), file) == {file}
    assert not load(opened(root, days=days), file).applied


def test_beyond_the_limit_the_oldest_files_are_forgotten(root: Path, tmp_path: Path):
    old, *recent = (write(tmp_path / name, name) for name in ("a", "b", "c"))
    for file in (old, *recent):
        load(opened(root), file)
    assert forget_oldest(store_of(opened(root)).changes, most=2) == 2
    assert known(opened(root), old, *recent) == {recent[-1]}
    assert load(opened(root), old).applied


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(InvalidRequest, match="gone"):
        hash_files([tmp_path / "gone"])
