"""Comparing benchmark files of two commits."""

import json
from pathlib import Path

import pytest

from bench.compare import Comparison, RowKey, compare, main, read_times, row_key
from bench.measure import Sample, Summary
from bench.results import Report, Row, write_json


def file_of(path: Path, times: dict[str, float], *, benchmark: str = "upsert") -> Path:
    """Write a file as `python -m bench --json` does."""
    rows = [
        Row(what=what, time=Summary.of([Sample(seconds=seconds, python=None, jvm=None)]))
        for what, seconds in times.items()
    ]
    rows.append(Row(what="a row without a time"))
    write_json(path, [Report(name=benchmark, title="Upserts", rows=tuple(rows))], command="python -m bench")
    return path


def key(what: str) -> RowKey:
    return RowKey("upsert", what)


def test_the_median_of_several_files_counts_for_each_row(tmp_path: Path) -> None:
    files = [file_of(tmp_path / f"{seconds}.json", {"1 into 1M: siltstone": seconds}) for seconds in (1.0, 9.0, 2.0)]
    assert read_times(files) == {key("1 into 1M: siltstone"): 2.0}


def test_files_of_one_side_may_hold_different_benchmarks(tmp_path: Path) -> None:
    upsert = file_of(tmp_path / "upsert.json", {"1 into 1M: siltstone": 1.0})
    fold = file_of(tmp_path / "fold.json", {"fold, 1M": 3.0}, benchmark="fold")
    assert read_times([upsert, fold]) == {key("1 into 1M: siltstone"): 1.0, RowKey("fold", "fold, 1M"): 3.0}


def test_a_measured_rate_is_not_part_of_a_row_key() -> None:
    before = row_key("eventlog", "1M: 64 appenders, threads, 60 events each, Delta: 10,739 a second")
    after = row_key("eventlog", "1M: 64 appenders, threads, 60 events each, Delta: 9,101 a second")
    assert before == after


@pytest.mark.parametrize(
    ("what", "is_peer"),
    [
        ("1 into 10M: siltstone, fsync", False),
        ("fold, 1M", False),
        ("join: hot, a new text", False),
        ("1M: append one event, SQLite", False),
        ("sum of a column on Spark, verified, 1M", False),
        ("1 into 10M: delta-rs merge", True),
        ("Spark MERGE, deletion vectors, 1M", True),
        ("join: DuckDB itself", True),
        ("1 of 1M: Spark's Delta reader", True),
        ("narrow, clean base, 1M", True),
    ],
)
def test_rows_of_peers_differ_from_siltstones_own(what: str, *, is_peer: bool) -> None:
    assert row_key("any", what).is_peer is is_peer


def test_only_own_rows_above_the_limit_are_slower_and_the_worst_is_first() -> None:
    before = {key("a"): 1.0, key("b"): 1.0, key("c"): 1.0, key("delta-rs"): 1.0}
    after = {key("a"): 1.2, key("b"): 1.15, key("c"): 2.0, key("delta-rs"): 5.0}
    comparison = compare(before, after)
    assert [row.row.what for row in comparison.slower(1.15)] == ["c", "a"]
    assert comparison.median_ratio(peers=True) == 5.0
    assert comparison.median_ratio(peers=False) == 1.2


def test_rows_of_one_side_are_listed_and_have_no_ratio() -> None:
    assert compare({key("old"): 1.0}, {key("new"): 1.0}) == Comparison(
        rows=(), only_before=(key("old"),), only_after=(key("new"),)
    )


def test_the_command_marks_own_rows_and_exits_with_1_if_one_is_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file_of(tmp_path / "before.json", {"siltstone": 1.0, "delta-rs merge": 1.0})
    after = file_of(tmp_path / "after.json", {"siltstone": 2.0, "delta-rs merge": 3.0})
    assert main([f"{before},{before}", str(after)]) == 1
    lines = capsys.readouterr().out.splitlines()
    own, peer = lines[:2]
    assert own.startswith("*")
    assert "2.00" in own
    assert not peer.startswith("*")
    assert "3.00" in peer
    assert lines[-1] == own
    assert main([str(before), str(after), "--limit", "2"]) == 0


def test_files_of_older_commits_may_have_more_fields(tmp_path: Path) -> None:
    path = file_of(tmp_path / "old.json", {"siltstone": 1.0})
    data = json.loads(path.read_text()) | {"host": "x"}
    path.write_text(json.dumps(data))
    assert read_times([path]) == {key("siltstone"): 1.0}
