"""The part of a fold that runs inside Spark's tasks, on real files, without Spark."""

import datetime
import decimal
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.delta.parquet import bloom_columns, writer_options
from siltstone.spark_tasks import fold, io
from siltstone.spark_tasks.io import Target, UnsortedFile, packed, with_dictionary

DAY = datetime.date(2026, 1, 1)
KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "string": (pa.string(), lambda n: f"k{n:03d}"),
    "long": (pa.int64(), lambda n: n - 5),
    "date": (pa.date32(), lambda n: DAY + datetime.timedelta(days=n)),
    "timestamp": (pa.timestamp("us", tz="UTC"), lambda n: datetime.datetime(2026, 1, 1, 0, n, tzinfo=datetime.UTC)),
    "decimal": (pa.decimal128(10, 2), lambda n: decimal.Decimal(n - 5) / 4),
}


def schema(*types: pa.DataType) -> pa.Schema:
    keys = [pa.field(f"k{number}", kind, nullable=False) for number, kind in enumerate(types)]
    return pa.schema([*keys, pa.field("value", pa.int64(), nullable=False), pa.field("tags", pa.list_(pa.string()))])


def rows(of: pa.Schema, keys: Sequence[tuple[Any, ...]], value: int) -> pa.Table:
    columns: list[Any] = [[key[number] for key in keys] for number in range(len(of.names) - 2)]
    return pa.table([*columns, [value] * len(keys), [["a", "b"]] * len(keys)], schema=of)


def changes(of: pa.Schema, keys: Sequence[tuple[Any, ...]], ops: Sequence[str], value: int = 2) -> pa.Table:
    table = rows(of, keys, value).set_column(
        len(of.names) - 2, "value", pa.array([value if op == "U" else None for op in ops], pa.int64())
    )
    return table.append_column("_op", pa.array(ops, pa.string()))


def job(of: pa.Schema, folder: Path, *, row_group_rows: int = 1000) -> fold.FoldJob:
    key = tuple(of.names[:-2])
    return fold.FoldJob(
        target=target(of, folder, row_group_rows=row_group_rows), defaults={}, key=key, op="_op", upsert="U"
    )


def target(of: pa.Schema, folder: Path, *, row_group_rows: int = 1000) -> Target:
    options = writer_options(of, of.names[:-2])
    return Target(schema=of, folder=str(folder), options=options, row_group_rows=row_group_rows, durable=True)


def rewritten(folder: Path, names: list[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(folder / name) for name in names])


def expected(base: Sequence[tuple[Any, ...]], changed: Sequence[tuple[Any, ...]], ops: Sequence[str]) -> list[Any]:
    truth = dict.fromkeys(base, 1)
    for key, op in zip(changed, ops, strict=True):
        truth.pop(key, None)
        if op == "U":
            truth[key] = 2
    return sorted((*key, value) for key, value in truth.items())


def values(table: pa.Table) -> list[Any]:
    return [tuple(row.values()) for row in table.drop_columns(["tags"]).to_pylist()]


@pytest.mark.parametrize("kind", KEYS)
@settings(max_examples=40)
@given(
    base=st.sets(st.integers(0, 40)),
    changed=st.dictionaries(st.integers(0, 40), st.sampled_from("UT")),
    piece=st.integers(1, 50),
    rows_per_file=st.integers(1, 50),
)
def test_changes_are_applied_to_a_file_whatever_the_batch_size(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    base: set[int],
    changed: dict[int, str],
    piece: int,
    rows_per_file: int,
) -> None:
    folder = tmp_path_factory.mktemp("w")
    typed, make = KEYS[kind]
    of = schema(typed)
    old = [(make(n),) for n in sorted(base)]
    new = [(make(n),) for n in sorted(changed)]
    ops = [changed[n] for n in sorted(changed)]
    pq.write_table(rows(of, old, 1), folder / "in.parquet", row_group_size=7)
    task = fold.Task(
        inputs=(str(folder / "in.parquet"),),
        changes=packed(changes(of, new, ops)),
        rows_per_file=rows_per_file,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fold, "PIECE_ROWS", piece)
        patched.setattr(io, "PIECE_ROWS", piece)
        found = fold.matching_keys(
            str(folder / "in.parquet"), packed(changes(of, new, ops).select(["k0"])), verify=True
        )
        names = fold.rewrite(task, job(of, folder), prefix="out")
    assert [new[n] for n in found] == [key for key in new if key in old]
    wanted = expected(old, new, ops)
    if not wanted:
        assert names == []
        return
    assert values(rewritten(folder, names)) == wanted
    assert len(names) == -(-len(wanted) // rows_per_file)


def test_composite_keys_are_ordered_column_by_column(tmp_path: Path) -> None:
    of = schema(pa.string(), pa.decimal128(5, 1), pa.bool_())
    every = list(itertools.product("ab", [decimal.Decimal(1), decimal.Decimal("2.5")], [False, True]))
    old, new = every[::2], every[1:6]
    pq.write_table(rows(of, old, 1), tmp_path / "in.parquet")
    task = fold.Task(
        inputs=(str(tmp_path / "in.parquet"),),
        changes=packed(changes(of, new, ["U", "T", "U", "U", "T"])),
        rows_per_file=100,
    )
    names = fold.rewrite(task, job(of, tmp_path), prefix="out")
    assert values(rewritten(tmp_path, names)) == expected(old, new, ["U", "T", "U", "U", "T"])


def test_several_files_become_one_in_key_order(tmp_path: Path) -> None:
    of = schema(pa.int64())
    for number in range(3):
        pq.write_table(rows(of, [(n,) for n in range(number, 30, 3)], 1), tmp_path / f"{number}.parquet")
    task = fold.Task(
        inputs=tuple(str(tmp_path / f"{number}.parquet") for number in range(3)),
        changes=packed(changes(of, [(5,), (99,)], ["T", "U"])),
        rows_per_file=100,
    )
    names = fold.rewrite(task, job(of, tmp_path), prefix="out")
    assert len(names) == 1
    assert values(rewritten(tmp_path, names)) == expected([(n,) for n in range(30)], [(5,), (99,)], ["T", "U"])


def test_new_keys_alone_become_a_file(tmp_path: Path) -> None:
    of = schema(pa.int64())
    task = fold.Task(inputs=(), changes=packed(changes(of, [(1,), (2,)], "UU")), rows_per_file=100)
    assert values(rewritten(tmp_path, fold.rewrite(task, job(of, tmp_path), prefix="o"))) == [(1, 2), (2, 2)]


def test_row_groups_are_whole_and_files_have_our_parquet_options(tmp_path: Path) -> None:
    of = schema(pa.int64())
    pq.write_table(rows(of, [(n,) for n in range(5000)], 1), tmp_path / "in.parquet")
    task = fold.Task(
        inputs=(str(tmp_path / "in.parquet"),),
        changes=packed(changes(of, [(n,) for n in range(5000, 5100)], "U" * 100)),
        rows_per_file=3500,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(io, "PIECE_ROWS", 700)
        names = fold.rewrite(task, job(of, tmp_path), prefix="out")
    files = [pq.ParquetFile(tmp_path / name).metadata for name in names]
    groups = [[file.row_group(n).num_rows for n in range(file.num_row_groups)] for file in files]
    assert groups == [[1000, 1000, 1000, 500], [1000, 600]]
    column = files[0].row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert bloom_columns(of, ["k0"]) == ["k0"]


def test_only_values_that_repeat_get_a_dictionary() -> None:
    table = pa.table({"many": np.arange(1000), "few": np.arange(1000) % 5, "nested": [[1]] * 1000})
    assert with_dictionary(table) == ["few"]


@pytest.mark.parametrize("ids", [[1, 3, 2], [1, 2, 2], [3, 4, 1, 2]])
def test_a_file_that_is_not_sorted_is_refused(tmp_path: Path, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "PIECE_ROWS", 2)
    pq.write_table(pa.table({"k0": ids}), tmp_path / "in.parquet")
    with pytest.raises(UnsortedFile, match=r"in\.parquet"):
        fold.matching_keys(str(tmp_path / "in.parquet"), packed(pa.table({"k0": [9]})), verify=True)


def test_wide_rows_are_written_in_smaller_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "PIECE_BYTES", 100_000)
    of = schema(pa.string())
    pq.write_table(rows(of, [(f"{n:04d}" * 1000,) for n in range(200)], 1), tmp_path / "in.parquet")
    task = fold.Task(
        inputs=(str(tmp_path / "in.parquet"),),
        changes=packed(changes(of, [("0007" * 1000,)], "T")),
        rows_per_file=1000,
    )
    names = fold.rewrite(task, job(of, tmp_path), prefix="out")
    assert rewritten(tmp_path, names).num_rows == 199
    assert pq.ParquetFile(tmp_path / names[0]).metadata.num_row_groups > 3


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fold.matching_keys(str(tmp_path / "none.parquet"), packed(pa.table({"k0": [1]})), verify=True)
