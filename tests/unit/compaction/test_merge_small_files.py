"""Small files merged into few: every row is in one file, and files do not overlap.

Files that would be read too often are left to a shuffle.
"""

import datetime
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.compaction.operations.merge_small_files import MAX_READS
from siltstone.dataset.store import Store
from siltstone.model.files import DataFile, KeyRange
from siltstone.spark_tasks.io import Target
from siltstone.spark_tasks.merge_files import MergeJob, MergeTask, merger
from tests.support.internals import divided_tasks, merge_input

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])


def looked_at(folder: Path, parts: list[list[Any]], kind: pa.DataType) -> list[Any]:
    """Write a file for each list of values, and return the inputs of a roll-up."""
    store = cast(Store, SimpleNamespace(base=SimpleNamespace(path=folder), footer=pq.read_metadata))
    found = []
    for number, values in enumerate(parts):
        name = f"{number:03d}.parquet"
        table = pa.table({"n": pa.array(values, kind), "text": [f"{number}-{at}" for at in range(len(values))]})
        pq.write_table(table, folder / name, row_group_size=7)
        size = (folder / name).stat().st_size
        found.append(merge_input(store, DataFile(path=name, size_bytes=size, rows=len(values)), "n"))
    return found


def merged_tables(folder: Path, work: list[MergeTask], kind: pa.DataType) -> list[pa.Table]:
    out = folder / "out"
    out.mkdir()
    schema = pa.schema([pa.field("n", kind), SCHEMA.field("text")])
    target = Target(schema=schema, folder=str(out), options={}, row_group_rows=1000, durable=False)
    job = MergeJob(root=str(folder), target=target, defaults={}, order=("n", "text"))
    names = [merger(work, job)(number).decode() for number in range(len(work))]
    return [pq.read_table(out / name) for name in names if name]


@pytest.mark.parametrize("files", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_in_one_file_and_files_do_not_overlap(tmp_path: Path, files: int, seed: int) -> None:
    chance = random.Random(seed)
    parts: list[list[int | None]] = [
        [number * 20 + chance.randrange(25) for _ in range(chance.randrange(1, 30))] for number in range(20)
    ]
    parts[chance.randrange(20)].append(None)
    work = divided_tasks(looked_at(tmp_path, parts, pa.int64()), files)
    assert work is not None
    assert len(work) <= files
    found = merged_tables(tmp_path, work, pa.int64())
    texts = [text for table in found for text in table.column("text").to_pylist()]
    assert sorted(texts) == sorted(f"{number}-{at}" for number, values in enumerate(parts) for at in range(len(values)))
    last = -1
    for table in found:
        values = [value for value in table.column("n").to_pylist() if value is not None]
        assert values == sorted(values)
        assert values[0] > last
        last = values[-1]
    assert [table.column("n").null_count for table in found] == [1, *[0] * (len(found) - 1)]


def test_times_and_text_divide_as_numbers_do(tmp_path: Path) -> None:
    start = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
    times = [[start + datetime.timedelta(minutes=part * 10 + at) for at in range(11)] for part in range(6)]
    for kind, values in (
        (pa.timestamp("us", tz="UTC"), times),
        (pa.timestamp("us"), [[time.replace(tzinfo=None) for time in part] for part in times]),
        (pa.string(), [[time.isoformat() for time in part] for part in times]),
        (
            pa.date32(),
            [[start.date() + datetime.timedelta(days=part * 3 + at) for at in range(4)] for part in range(6)],
        ),
    ):
        folder = tmp_path / str(kind).replace("[", "-").replace("]", "")
        folder.mkdir()
        work = divided_tasks(looked_at(folder, values, kind), 3)
        assert work is not None
        found = merged_tables(folder, work, kind)
        assert len(found) == 3
        assert sum(table.num_rows for table in found) == sum(map(len, values))


def test_files_that_overlap_every_range_are_left_to_a_shuffle(tmp_path: Path) -> None:
    inputs = looked_at(tmp_path, [list(range(100)) for _ in range(5)], pa.int64())
    assert divided_tasks(inputs, 1) is not None
    again = divided_tasks(
        [*inputs[:4], *looked_at(tmp_path, [list(range(n, n + 100)) for n in range(5)], pa.int64())], 4
    )
    assert again is None
    assert MAX_READS > 1


def test_files_of_unknown_ranges_are_left_to_a_shuffle(tmp_path: Path) -> None:
    inputs = looked_at(tmp_path, [[None, None], [1, 2]], pa.int64())
    assert inputs[0].values == KeyRange()
    assert inputs[0].has_nulls
    assert not inputs[1].has_nulls
    assert divided_tasks(inputs, 2) is None
    assert divided_tasks(inputs, 1) is not None
