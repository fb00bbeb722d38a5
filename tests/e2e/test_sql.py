"""`silt sql` on the hot engine: no JVM, every form of output, values, limits, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from siltstone.cli.input_parsing import read_parameter
from siltstone.errors import InvalidRequest
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import COMMAND, TIMEOUT_SECONDS, process, silt

COUNTED = f"SELECT name, count(*) AS n FROM {PEOPLE} GROUP BY name ORDER BY name"
WARNING = "--max-rows"
"""The option that a warning about a truncated result names."""
MANY = "abcdefgh"
ENDLESS = (
    f"SELECT count(*) AS c FROM {', '.join(f'{PEOPLE} {letter}' for letter in MANY)} "
    f"WHERE {' + '.join(f'{letter}.age' for letter in MANY)} = 100"
)
SHOW_MODULES = """
import sys
from siltstone.cli.app import main
sys.argv = ["silt", *sys.argv[1:]]
code = main()
sys.stderr.write(",".join(name for name in ("pyspark", "py4j", "grpc", "pandas") if name in sys.modules))
sys.exit(code)
"""


@pytest.fixture
def people_lake(lake: Path) -> Path:
    """A lake with a few people."""
    rows = "".join(
        json.dumps({"id": f"p{at}", "name": "ann" if at % 2 else "bob", "age": at, "born": "2001-02-03"}) + "\n"
        for at in range(40)
    )
    assert silt("--lake", lake, "upsert", PEOPLE, "-", stdin=rows).code == 0
    return lake


def test_a_small_dataset_is_answered_in_a_process_without_spark_or_pandas(people_lake: Path):
    done = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, "--lake", str(people_lake), "--json", "sql", COUNTED],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert (found["columns"], found["rows"]) == (["name", "n"], [["ann", 20], ["bob", 20]])
    assert (found["engine"], found["truncated"], found["row_count"]) == ("hot", False, 2)
    assert found["reason"]


def test_rows_come_as_a_table_csv_or_json(people_lake: Path):
    shown = silt("--lake", people_lake, "sql", COUNTED)
    assert "ann" in shown.out
    assert [fact for fact in ("2 rows", "hot") if fact not in shown.err] == []
    assert silt("--lake", people_lake, "sql", COUNTED, "--csv").out == "name,n\nann,20\nbob,20\n"
    assert silt("--lake", people_lake, "sql", COUNTED, "--format", "csv").out == "name,n\nann,20\nbob,20\n"
    assert silt("--lake", people_lake, "sql", COUNTED, "--format", "json").data["rows"] == [["ann", 20], ["bob", 20]]


def test_rows_that_a_limit_has_cut_are_announced(people_lake: Path, tmp_path: Path):
    text = f"SELECT id FROM {PEOPLE}"
    for form in ((), ("--csv",), ("--out", tmp_path / "rows.csv")):
        few = silt("--lake", people_lake, "sql", text, "--max-rows", "3", *form)
        assert (few.code, "3 rows" in few.err, WARNING in few.err) == (0, True, True), form
    assert silt("--lake", people_lake, "--json", "sql", text, "--max-rows", "3").data["truncated"]
    assert WARNING not in silt("--lake", people_lake, "sql", text).err


def test_only_a_table_has_the_row_limit_of_the_setting(people_lake: Path, monkeypatch: pytest.MonkeyPatch):
    text = f"SELECT id, name FROM {PEOPLE} ORDER BY age"
    monkeypatch.setenv("SILT_MAX_ROWS", "5")
    shown = silt("--lake", people_lake, "sql", text)
    assert (shown.out.count("p"), WARNING in shown.err) == (5, True)
    csv = silt("--lake", people_lake, "sql", text, "--csv")
    assert (csv.out.count("\n"), csv.err) == (41, "")
    found = silt("--lake", people_lake, "--json", "sql", text)
    assert (found.data["row_count"], found.data["truncated"], len(found.data["rows"])) == (40, False, 40)
    assert found.out == json.dumps(found.data, indent=2) + "\n"
    nothing = silt("--lake", people_lake, "--json", "sql", f"{text} LIMIT 0")
    assert nothing.out == json.dumps(nothing.data, indent=2) + "\n"


def test_csv_distinguishes_null_from_empty_text(people_lake: Path):
    text = f"SELECT '' AS a, nullif(name, name) AS b, ' \"x\"' AS c FROM {PEOPLE} WHERE id = 'p0'"
    assert silt("--lake", people_lake, "sql", text, "--csv").out == 'a,b,c\n"",," ""x"""\n'


def test_no_file_is_written_into_the_lake(people_lake: Path):
    refused = silt("--lake", people_lake, "--json", "sql", COUNTED, "--out", people_lake / "rows.csv")
    assert (refused.code, "rows.csv" in refused.error["message"]) == (2, True)
    assert not (people_lake / "rows.csv").exists()


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_rows_go_into_a_file_by_its_ending(people_lake: Path, tmp_path: Path, ending: str):
    out = tmp_path / f"rows.{ending}"
    out.write_text("something older")
    done = silt("--lake", people_lake, "--json", "sql", COUNTED, "--out", out)
    assert (done.data["row_count"], done.data["file"]) == (2, str(out))
    if ending == "parquet":
        assert pq.read_table(out).to_pylist() == [{"name": "ann", "n": 20}, {"name": "bob", "n": 20}]
    elif ending == "csv":
        assert out.read_text() == "name,n\nann,20\nbob,20\n"
    else:
        assert json.loads(out.read_text()) == [{"name": "ann", "n": 20}, {"name": "bob", "n": 20}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", out.name]


def test_a_failed_write_of_a_file_changes_nothing(people_lake: Path, tmp_path: Path):
    (tmp_path / "rows.csv").mkdir()
    done = silt("--lake", people_lake, "sql", COUNTED, "--out", tmp_path / "rows.csv")
    assert (done.code, "rows.csv" in done.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake", "rows.csv"]


def test_values_are_bound_by_name_and_type(people_lake: Path):
    text = f"SELECT count(*) AS n FROM {PEOPLE} WHERE age < :age AND name = :name AND born = :day"
    values = ("--param", "age=10", "--param", "name=it's", "--param", "day:date=2001-02-03")
    assert silt("--lake", people_lake, "--json", "sql", text, *values).data["rows"] == [[0]]
    values = ("--param", "age=10", "--param", "name=ann", "--param", "day:date=2001-02-03")
    assert silt("--lake", people_lake, "--json", "sql", text, *values, "--engine", "hot").data["rows"] == [[5]]


@pytest.mark.parametrize(
    "text",
    ["n", "=5", "n:int=five", "n:number=5", "at:date=yesterday", "b:boolean=maybe", "b:null=0", f"n={'9' * 5000}"],
)
def test_a_value_that_cannot_be_read_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="--param"):
        read_parameter(text)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--engine", "duck"), "auto, hot, spark"),
        (("--format", "xml"), "table, json, csv, parquet"),
        (("--format", "parquet"), "--out"),
        (("--out", "rows.xls"), "--out"),
        (("--csv", "--format", "json"), "--csv"),
        (("--param", "n=1", "--param", "n=2"), "'n'"),
        (("--param", "n=1"), "n"),
        (("--timeout", "-1"), "-1"),
        (("--out", "/no/such/folder/rows.csv"), "/no/such/folder"),
    ],
)
def test_options_that_make_no_sense_are_refused(people_lake: Path, options: tuple[str, ...], fact: str):
    done = silt("--lake", people_lake, "--json", "sql", COUNTED, *options)
    assert (done.code, done.error["kind"]) == (2, "invalid_request")
    assert fact in done.error["message"]


def test_an_impossible_hot_query_is_refused(people_lake: Path):
    done = silt("--lake", people_lake, "--json", "sql", f"SELECT stddev(score) AS s FROM {PEOPLE}", "--engine", "hot")
    assert (done.code, done.error["kind"]) == (2, "invalid_request")
    assert "STDDEV" in done.error["message"]


def test_a_time_limit_ends_a_query(people_lake: Path):
    done = silt("--lake", people_lake, "--json", "sql", ENDLESS, "--timeout", "0.3", "--engine", "hot")
    assert (done.code, done.error["kind"]) == (5, "unavailable")


def test_an_interrupt_of_the_hot_engine_is_one_line(people_lake: Path):
    child = subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, "--lake", str(people_lake), "sql", ENDLESS, "--engine", "hot"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    maps, deadline = Path(f"/proc/{child.pid}/maps"), time.monotonic() + TIMEOUT_SECONDS
    while "duckdb" not in maps.read_text():  # loaded for the query, after the handler of Ctrl-C was installed
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)  # now it runs the query
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=TIMEOUT_SECONDS)
    assert (child.returncode, out) == (130, b""), err
    assert err.startswith(b"silt: Interrupted")
    assert err.count(b"\n") == 1


def test_a_query_can_come_from_standard_input(people_lake: Path):
    assert process("--lake", people_lake, "--json", "sql", "-", stdin=COUNTED).data["row_count"] == 2
