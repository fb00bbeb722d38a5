"""Flipped bits in data files: every way to read without Spark gives the right rows or an error that names the file."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, Lake, Settings
from siltstone.delta.parquet import write_file
from siltstone.errors import Corruption, Reason, Unavailable
from siltstone.host.system_errors import read_failure
from siltstone.spark_tasks.parquet_checksums import add_checksums, check_file, open_parquet
from tests.support.flips import flipped, footer_at, is_named_or_harmless, live_files
from tests.support.folds import land, stage
from tests.support.internals import store_of
from tests.support.people import NAME, create, key, people, person
from tests.support.refusals import refused

FAST = Settings(durable=False)
ROWS = 60
STEP = 61
"""Distance of flipped bits, in bytes."""


def made(path: Path) -> Dataset:
    dataset = create(Lake.open(path, settings=FAST))
    dataset.upsert(people(ROWS))
    store, snapshot = store_of(dataset), store_of(dataset).snapshot()
    land(store, snapshot, (stage(store, store.base, dataset.to_arrow(), {}),), with_prune=True)
    dataset.upsert([person(n, city="changed") for n in range(0, ROWS, 5)])
    return dataset


def to_arrow(path: Path) -> pa.Table:
    with Lake.open(path, settings=FAST) as lake:
        return lake.dataset(NAME).to_arrow().sort_by("id")


def get(path: Path) -> pa.Table:
    with Lake.open(path, settings=FAST) as lake:
        return lake.dataset(NAME).get([key(n) for n in range(ROWS)]).sort_by("id")


def hot_sql(path: Path) -> pa.Table:
    with Lake.open(path, settings=FAST) as lake:
        found = lake.sql(f"SELECT * FROM {NAME} ORDER BY id", engine="hot")
        return pa.Table.from_pylist([dict(zip(found.columns, row, strict=True)) for row in found.rows])


@pytest.mark.parametrize("read", [to_arrow, get, hot_sql])
def test_a_flipped_bit_is_named_or_harmless(lake_path: Path, read: Callable[[Path], pa.Table]):
    live = live_files(made(lake_path))
    assert len(live) == 2
    truth = read(lake_path).to_pylist()
    named = 0
    for damaged in live:
        for _ in flipped(damaged, step=STEP if read is not hot_sql else 3 * STEP):
            named += is_named_or_harmless(lambda: read(lake_path).to_pylist(), truth, damaged)
    assert named > 10
    assert read(lake_path).to_pylist() == truth


def test_without_verification_a_flip_in_a_footer_is_read(lake_path: Path):
    file = live_files(made(lake_path))[0]
    content = bytearray(file.read_bytes())
    at = content.index(b"\x04city", footer_at(content))  # the name of a column in the schema
    content[at + 1] ^= 1
    file.write_bytes(content)
    with refused(Corruption, Reason.DAMAGED_FILE, file.name):
        to_arrow(lake_path)
    with Lake.open(lake_path, settings=Settings(durable=False, verify_checksums=False)) as lake:
        assert None in lake.dataset(NAME).to_arrow().column("city").to_pylist()


def test_any_reader_reads_a_file_with_checksums_and_adding_them_twice_changes_nothing(tmp_path: Path):
    path, rows = tmp_path / "f.parquet", people(500)
    pq.write_table(rows, path)
    add_checksums(path)
    content = path.read_bytes()
    add_checksums(path)
    assert path.read_bytes() == content
    check_file(path)
    assert pq.read_table(path).equals(rows)


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Limit the size of every file, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_only_a_part_of_the_checksums_is_an_error_of_the_disk(tmp_path: Path):
    path = tmp_path / "f.parquet"
    pq.write_table(people(500), path)
    with files_of_at_most(path.stat().st_size + 3), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        add_checksums(path)


def test_an_upsert_whose_checksums_do_not_fit_on_the_disk_is_unavailable_and_works_later(tmp_path: Path):
    with Lake.open(tmp_path / "lake", settings=Settings(durable=False)) as lake:
        made = create(lake)
        made.upsert(people(5000))
        [file] = live_files(made)
        with files_of_at_most(file.stat().st_size - 10), pytest.raises(Unavailable):
            made.upsert(people(5000))
        assert made.upsert(people(5000)).sequence == 2


@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_files_of_any_number_of_rows_have_checksums(tmp_path: Path, count: int):
    path = tmp_path / "f.parquet"
    write_file(people(count), path, key=["id"])
    check_file(path)
    with open_parquet(path) as file:
        assert file.read().num_rows == count
    damaged = bytearray(path.read_bytes())
    damaged[-20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(pa.ArrowInvalid, match="footer"):
        check_file(path)


def test_a_flip_in_a_bloom_filter_is_found_by_the_check_that_spark_relies_on(tmp_path: Path):
    path = tmp_path / "f.parquet"
    write_file(people(500), path, key=["id"])
    with open_parquet(path) as file:
        column = file.metadata.row_group(0).column(3)
        start = column.dictionary_page_offset or column.data_page_offset
        pages_end = start + column.total_compressed_size
    damaged = bytearray(path.read_bytes())
    damaged[pages_end + 20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(pa.ArrowInvalid, match="bloom filters"):
        check_file(path)


def test_a_file_that_the_system_refuses_is_not_called_damaged():
    for number, word in ((errno.EACCES, "Permission denied"), (errno.EMFILE, "Too many open files")):
        found = read_failure("f.parquet", OSError(number, os.strerror(number)))
        assert isinstance(found, Unavailable)
        assert word in str(found)
        assert "Restore" not in str(found)
    assert isinstance(read_failure("f.parquet", MemoryError()), Unavailable)
    assert isinstance(read_failure("f.parquet", OSError("Couldn't deserialize thrift")), Corruption)


def test_a_process_without_file_descriptors_gets_a_clear_error(lake_path: Path):
    dataset = made(lake_path)
    whole = dataset.to_arrow()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(Unavailable):
            dataset.to_arrow()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert dataset.to_arrow().equals(whole)


def test_a_dataset_finds_its_damaged_file(tmp_path: Path):
    dataset = made(tmp_path / "lake")
    assert dataset.damaged_file() is None
    for path in live_files(dataset):
        for _ in flipped(path, start=200, step=1 << 40):
            assert path.as_posix().endswith(str(dataset.damaged_file()))
