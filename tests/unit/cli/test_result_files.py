"""Rows into a file: complete or absent, in every format, with a few batches in memory."""

import csv
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.cli.result_files import write_rows
from siltstone.errors import InvalidRequest, Unavailable
from tests.support.refusals import refused

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))])
FORMS = ["parquet", "csv", "json"]
MEMORY_BYTES = 32 * 1024 * 1024


def batches(count: int, rows: int = 2) -> Iterator[pa.RecordBatch]:
    for at in range(count):
        numbers = range(at * rows, (at + 1) * rows)
        columns = [list(numbers), [f"it's \n {n}" if n else None for n in numbers], [[n, None] for n in numbers]]
        yield pa.record_batch(
            [pa.array(one, field.type) for one, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )


def names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


def read(path: Path, form: str) -> object:
    if form == "parquet":
        return pq.read_table(path).to_pylist()
    return json.loads(path.read_text(encoding="utf-8")) if form == "json" else path.read_text()


@pytest.mark.parametrize("form", FORMS)
def test_all_rows_of_all_batches_are_written(tmp_path: Path, form: str):
    out = tmp_path / "rows"
    rows = [row for batch in batches(2) for row in batch.to_pylist()]
    assert write_rows(SCHEMA, batches(2), out, form) == len(rows)
    expected = (
        'n,s,l\n0,,"[0, null]"\n1,"it\'s \n 1","[1, null]"\n2,"it\'s \n 2","[2, null]"\n3,"it\'s \n 3","[3, null]"\n'
    )
    assert read(out, form) == (expected if form == "csv" else rows)
    assert write_rows(SCHEMA, [], out, form) == 0
    assert read(out, form) == ("n,s,l\n" if form == "csv" else [])
    assert names(tmp_path) == ["rows"]


def test_json_looks_as_on_the_screen(tmp_path: Path):
    write_rows(SCHEMA, batches(1), tmp_path / "rows", "json")
    rows = [row for batch in batches(1) for row in batch.to_pylist()]
    assert (tmp_path / "rows").read_text() == json.dumps(rows, indent=2) + "\n"


@pytest.mark.parametrize("streamed", [False, True], ids=["table", "stream"])
@pytest.mark.parametrize("form", FORMS)
def test_values_keep_every_character_that_may_end_a_line(tmp_path: Path, form: str, streamed: bool):  # noqa: FBT001
    values = [f"a{end}b" for end in ("\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\r", "\n", "\r\n")]
    table = pa.table({"s": values})
    out = tmp_path / "rows"
    write_rows(table.schema, table.to_reader() if streamed else table.to_batches(), out, form)
    if form == "csv":
        with out.open(encoding="utf-8", newline="") as file:
            assert list(csv.reader(file)) == [["s"], *([value] for value in values)]
    else:
        assert read(out, form) == table.to_pylist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("failure", [Unavailable("Spark went away."), KeyboardInterrupt()])
def test_a_failed_or_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, form: str, failure: BaseException
):
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(3)
        raise failure

    out = tmp_path / "rows"
    out.write_text("old")
    with pytest.raises(type(failure)):
        write_rows(SCHEMA, failing(), out, form)
    assert out.read_text() == "old"
    assert names(tmp_path) == ["rows"]


def test_a_link_stays_a_link_and_a_pipe_is_written_to(tmp_path: Path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_rows(SCHEMA, [], tmp_path / "link", "csv")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "n,s,l\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_rows(SCHEMA, [], tmp_path / "pipe", "csv")
        assert os.read(reader, 100) == b"n,s,l\n"
    finally:
        os.close(reader)


def test_a_path_of_an_open_pipe_is_written_to(tmp_path: Path):
    reader, writer = os.pipe()
    (tmp_path / "stdout").symlink_to(f"/dev/fd/{writer}")
    try:
        for out in (Path(f"/dev/fd/{writer}"), tmp_path / "stdout"):
            write_rows(SCHEMA, [], out, "csv")
            assert os.read(reader, 100) == b"n,s,l\n"
    finally:
        os.close(reader)
        os.close(writer)
    assert names(tmp_path) == ["stdout"]


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_file_that_was_there_keeps_its_mode(tmp_path: Path, mode: int):
    out = tmp_path / "rows"
    out.touch()
    out.chmod(mode)
    write_rows(SCHEMA, batches(1), out, "parquet")
    assert stat.S_IMODE(out.stat().st_mode) == mode


AS_NOBODY = """
import os, sys
from pathlib import Path
import pyarrow as pa
from siltstone.cli.result_files import write_rows
schema, out = pa.schema([("n", pa.int64())]), Path(sys.argv[1]) / "rows"
write_rows(schema, [], out, "csv")
out.write_text("old")
out.chmod(0o400)
if os.getuid() == 0:
    os.chown(sys.argv[1], 65534, 65534)
    os.chown(out, 65534, 65534)
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    write_rows(schema, [], out, "csv")
finally:
    print(out.read_text(), end="")
"""


def test_a_file_that_may_not_be_written_stays():
    with tempfile.TemporaryDirectory() as folder:  # in a folder that another user may read
        call = [sys.executable, "-c", AS_NOBODY, folder]
        done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert "Permission denied" in done.stderr
    assert (done.returncode, done.stdout) == (1, "old")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_two_columns_of_one_name_are_refused_where_one_would_be_lost(tmp_path: Path, form: str):
    twice = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.string())])
    with pytest.raises(InvalidRequest):
        write_rows(twice, [], tmp_path / "rows", form)
    write_rows(twice, [], tmp_path / "rows.csv", "csv")
    assert names(tmp_path) == ["rows.csv"]


def test_an_error_of_the_source_of_rows_is_not_reported_as_one_of_the_file(tmp_path: Path):
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        raise ConnectionResetError("Spark hung up")

    for form in FORMS:
        with pytest.raises(ConnectionResetError, match="Spark hung up"):
            write_rows(SCHEMA, failing(), tmp_path / "rows", form)
    assert names(tmp_path) == []


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(InvalidRequest):
        write_rows(SCHEMA, [], tmp_path, "csv")
    with refused(InvalidRequest, None, "no/rows "):
        write_rows(SCHEMA, [], tmp_path / "no" / "rows", "csv")


@pytest.mark.parametrize("form", FORMS)
def test_memory_holds_a_few_batches_however_many_come(tmp_path: Path, form: str):
    seen = [0]
    one = pa.record_batch([pa.array(range(20_000), pa.int64()), pa.array(["x" * 50] * 20_000)], names=["n", "s"])
    sent = 60 if form == "parquet" else 2
    before = pa.total_allocated_bytes()

    def watched() -> Iterator[pa.RecordBatch]:
        for _ in range(sent):
            seen.append(pa.total_allocated_bytes() - before)
            yield pa.record_batch([column.take(pa.array(range(20_000))) for column in one.columns], names=["n", "s"])

    assert write_rows(one.schema, watched(), tmp_path / "rows", form) == sent * 20_000
    assert max(seen) < MEMORY_BYTES < 60 * one.nbytes
