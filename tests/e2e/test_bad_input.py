"""Every refusal has a kind, an exit code and a message that says what is wrong; and it changes nothing."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.cli.app import main
from tests.e2e.conftest import PEOPLE, PRICES
from tests.e2e.silt import contents, silt

CODES = {"invalid_request": 2, "not_found": 3, "conflict": 4}
SLIPS = re.compile(
    r"(?<!\.)\.\.(?=\s)|\?\.|: :|\b1 (rows|keys|files|hours|columns)\b|\ba [aei]\w|\(s\)|[a-z]= |[a-z]=,"
)
"""Slips of the pen: a doubled point or colon, a wrong plural or article, the spelling of Python's arguments."""
A_ROW = '{"id": "a"}'
SCHEMA = "id STRING, n INT"


def refused(lake: Path, kind: str, says: str, *call: object, stdin: str = "") -> None:
    before = contents(lake)
    result = silt("--lake", lake, "--json", *call, stdin=stdin)
    assert result.error["kind"] == kind, result
    assert says in result.error["message"], result
    assert result.code == CODES[kind]
    assert result.out == ""
    assert contents(lake) == before
    for_people = silt("--lake", lake, *call, stdin=stdin)
    assert (for_people.code, for_people.out) == (CODES[kind], "")
    assert for_people.err.startswith("silt: ")
    assert for_people.err.count("\n") == 1
    assert not SLIPS.search(for_people.err), for_people.err


@pytest.mark.parametrize(
    "name", ["people", "a.b", "a.b.c.d", "a..c", "a.b/../c.d", "../a.b.c", "a.b._c", "", "a.b.c d"]
)
def test_a_malformed_name(untouched: Path, name: str):
    refused(untouched, "invalid_request", "Dataset name", "describe", name)
    refused(untouched, "invalid_request", "Dataset name", "create", name, "--key", "id", "--schema", SCHEMA)


@pytest.mark.parametrize(
    "call",
    [
        ("describe", "crm.sales.nobody"),
        ("head", "crm.sales.nobody"),
        ("get", "crm.sales.nobody", "a"),
        ("status", "crm.sales.nobody"),
        ("upsert", "crm.sales.nobody", "--row", A_ROW),
        ("tombstone", "crm.sales.nobody", "a"),
        ("tombstones", "crm.sales.nobody"),
        ("compact", "crm.sales.nobody"),
        ("vacuum", "crm.sales.nobody"),
        ("drop", "crm.sales.nobody", "--yes"),
        ("ingest", "crm.sales.nobody", "x.parquet"),
        ("history", "crm.sales.nobody"),
        ("changes", "crm.sales.nobody"),
        ("export", "crm.sales.nobody", "out"),
        ("sql", "SELECT * FROM crm.sales.nobody"),
    ],
)
def test_an_unknown_dataset(untouched: Path, call: tuple[str, ...]):
    refused(untouched, "not_found", "There is no dataset crm.sales.nobody", *call)


@pytest.mark.parametrize(
    ("kind", "says", "call"),
    [
        ("invalid_request", "without a zone", ("head", PEOPLE, "--at", "2026-11-16")),
        ("invalid_request", "not 'noon'", ("head", PEOPLE, "--at", "noon")),
        ("invalid_request", "has not come yet", ("head", PEOPLE, "--at", "2999-01-01T00:00Z")),
        ("not_found", "sequence 1 is not there; the newest is 0", ("head", PEOPLE, "--at", "1")),
        ("not_found", "was not there yet", ("head", PEOPLE, "--at", "2001-01-01T00:00Z")),
        ("invalid_request", "limit must be at least 1", ("history", PEOPLE, "--limit", "0")),
        ("invalid_request", "be a valid integer", ("history", PEOPLE, "--limit", "all")),
        ("invalid_request", "limit must be at least 1", ("changes", PEOPLE, "--limit", "-1")),
        ("invalid_request", "since must be a sequence", ("changes", PEOPLE, "--since", "-1")),
        ("not_found", "sequence 7 is not there", ("changes", PEOPLE, "--since", "7")),
        ("invalid_request", "not 'xml'", ("export", PEOPLE, "out", "--format", "xml")),
        ("invalid_request", "Column 'tags' is of type array<string>", ("export", PEOPLE, "out", "--format", "csv")),
        ("invalid_request", "files must be 1 to", ("export", PEOPLE, "out", "--files", "0")),
        ("invalid_request", "folder on this machine", ("export", PEOPLE, "s3://bucket/out")),
        ("invalid_request", "outside of the lake", ("export", PEOPLE, "/")),
        ("not_found", "sequence 9 is not there", ("export", PEOPLE, "out", "--at", "9")),
    ],
)
def test_a_point_of_the_past_or_an_export_that_cannot_be(untouched: Path, kind: str, says: str, call: tuple[str, ...]):
    refused(untouched, kind, says, *call)


def test_an_export_into_the_lake_or_over_something_else(untouched: Path, tmp_path: Path):
    (tmp_path / "letter.txt").write_text("mine")
    refused(untouched, "invalid_request", "outside of the lake", "export", PEOPLE, str(untouched / "out"))
    refused(untouched, "invalid_request", "is not empty", "export", PEOPLE, str(tmp_path))
    replace = ("export", PEOPLE, str(tmp_path), "--overwrite")
    refused(untouched, "invalid_request", "pass --yes", *replace)
    refused(untouched, "invalid_request", "no list of files that an export wrote", *replace, "--yes")
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("schema", "key", "says"),
    [
        ("id STRING, _op STRING", "id", "'_op': names that start with '_' are reserved"),
        ("id DOUBLE", "id", "Key column 'id' is of type double"),
        ("id FLOAT, n INT", "id", "Key column 'id' is of type float"),
        ("id STRING", "nope", "Key column 'nope' is not in the schema"),
        ("id STRING", ",", "at least one key column"),
        ("id STRING", "id,id", "names a column twice"),
        ("id STRING, ID INT", "id", "appears twice"),
        ("id", "id", "cannot be read"),
        ("id STRING, n INTERVAL", "id", "cannot be"),
        ("id STRING) AS SELECT (1", "id", "cannot be"),
        ("id VARCHAR(3)", "id", "Column 'id': the length in VARCHAR(3) is not supported"),
        ("id STRING, n INT DEFAULT 5", "id", "Column 'n': DEFAULT is not supported"),
        ("id STRING,, n INT", "id", "cannot be read: there is ',' where a column is expected"),
    ],
)
def test_a_schema_or_key_that_is_not_allowed(untouched: Path, schema: str, key: str, says: str):
    refused(untouched, "invalid_request", says, "create", "a.b.c", "--key", key, "--schema", schema)


def test_a_subject_that_is_no_column(untouched: Path):
    refused(
        untouched,
        "invalid_request",
        "'who' is not in",
        "create",
        "a.b.c",
        "--key",
        "id",
        "--schema",
        SCHEMA,
        "--subject",
        "who",
    )


def test_columns_from_no_source_or_from_two(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", "one of the three", "create", "a.b.c", "--key", "id")
    both = ("--schema", SCHEMA, "--like", tmp_path / "x.csv")
    refused(untouched, "invalid_request", "one of the three", "create", "a.b.c", "--key", "id", *both)


def test_columns_from_a_file_that_cannot_give_them(untouched: Path, tmp_path: Path):
    (tmp_path / "x.txt").write_text("id\n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 cut off")
    create = ("create", "a.b.c", "--key", "id", "--like")
    refused(untouched, "not_found", "There is no file", *create, tmp_path / "gone.parquet")
    refused(untouched, "invalid_request", "a parquet, csv, json, ndjson file", *create, tmp_path / "x.txt")
    refused(untouched, "invalid_request", "cannot be read", *create, tmp_path / "x.parquet")
    mixed = '{"id": 1}\n{"id": "a"}'
    for number, text in enumerate(("", "[1]", "{", '"text"', mixed, '{"id": null}', '{"id": true}\n{"id": 1}')):
        (tmp_path / f"{number}.json").write_text(text)
        refused(untouched, "invalid_request", "cannot be read", *create, tmp_path / f"{number}.json")


def test_a_name_that_is_taken_by_a_different_dataset(untouched: Path):
    other = ("create", PRICES, "--key", "sku", "--schema")
    refused(
        untouched, "conflict", "also has column 'store', 'price'; its key is sku, store, not sku", *other, "sku STRING"
    )
    refused(
        untouched,
        "conflict",
        "its key is sku, store, not sku.",
        *other,
        "sku STRING, store BIGINT, price DECIMAL(10,2)",
    )
    same = ("create", PRICES, "--key", "sku,store", "--schema")
    changed = "sku STRING, store INT, price DECIMAL(10,2) NOT NULL, colour STRING"
    says = "no column 'colour'; its column 'store' is a long, not an integer; its column 'price' may be null."
    refused(untouched, "conflict", says, *same, changed)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"name": "Ada"}, "'id'"),
        ({"id": None}, "'id'"),
        ({"id": "a", "nope": 1}, "no column 'nope'"),
        ({"id": "a", "_op": "D"}, "no column '_op'"),
        ({"id": 7}, "column 'id': 7 is not a string"),
        ({"id": "a", "age": "old"}, "column 'age': 'old' is not an integer"),
        ({"id": "a", "age": 2**31}, "column 'age': 2147483648 is not an integer"),
        ({"id": "a", "age": 2**70}, "column 'age'"),
        ({"id": "a", "age": 1.5}, "column 'age': 1.5 is not an integer"),
        ({"id": "a", "age": True}, "column 'age': True is not an integer"),
        ({"id": "a", "score": "high"}, "column 'score': 'high' is not a double"),
        ({"id": "a", "pay": "much"}, "column 'pay': 'much' is not a decimal(10,2)"),
        ({"id": "a", "pay": "123456789.00"}, "column 'pay'"),
        ({"id": "a", "born": "yesterday"}, "column 'born': 'yesterday' is not a date"),
        ({"id": "a", "born": "2023-02-29"}, "column 'born'"),
        ({"id": "a", "at": "noon"}, "column 'at': 'noon' is not a timestamp"),
        ({"id": "a", "tags": "x"}, "column 'tags'"),
        ({"id": "a", "tags": [1]}, "column 'tags'"),
        ({"id": "x" * 1025}, "1024 at most"),
    ],
)
def test_a_row_that_does_not_fit(untouched: Path, row: dict[str, object], says: str):
    refused(untouched, "invalid_request", says, "upsert", PEOPLE, "--row", json.dumps(row))
    refused(untouched, "invalid_request", says, "upsert", PEOPLE, "-", stdin=json.dumps([{"id": "good"}, row]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("[]", "empty"),
        ("[1]", "not a dict"),
        ("7", "not a dict"),
        ("{", "is not JSON"),
        ('{"id": "a"}\nnope\n', "line 2 is not JSON"),
        ('\n\n{"id": "a"}\n\nnope\n', "line 5 is not JSON"),
        ('\nnope\n{"id": "a"}\n', "line 2 is not JSON"),
        ('{"id": "a"\n{"id": "b"}\n', "line 2 is not JSON"),
        ('\n[{"id": "a"},\n{"id" "b"}]\n', "line 3 is not JSON"),
        ("id,name\na,b\n", "is not JSON"),
    ],
)
def test_input_that_is_not_rows(untouched: Path, text: str, says: str):
    refused(untouched, "invalid_request", says, "upsert", PEOPLE, "-", stdin=text)


def test_rows_from_nowhere_and_from_two_places(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", "--row", "upsert", PEOPLE)
    refused(untouched, "invalid_request", "--row", "upsert", PEOPLE, "-", "--row", A_ROW)
    refused(untouched, "not_found", "There is no file", "upsert", PEOPLE, tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refused(untouched, "invalid_request", "UTF-8", "upsert", PEOPLE, tmp_path / "binary")
    refused(untouched, "invalid_request", "UTF-8", "upsert", PEOPLE, tmp_path)


def test_half_of_an_idempotent_write(untouched: Path):
    refused(untouched, "invalid_request", "both a producer", "upsert", PEOPLE, "--row", A_ROW, "--producer", "job")
    refused(untouched, "invalid_request", "both a producer", "upsert", PEOPLE, "--row", A_ROW, "--sequence", "1")
    negative = ("--producer", "job", "--sequence", "-1")
    refused(untouched, "invalid_request", "whole number from 0", "upsert", PEOPLE, "--row", A_ROW, *negative)


def test_keys_that_do_not_fit_are_named_and_none_is_written(untouched: Path):
    silt("--lake", untouched, "create", "a.b.numbers", "--key", "n", "--schema", "n INT")
    silt("--lake", untouched, "upsert", "a.b.numbers", "-", stdin='[{"n": 1}, {"n": 2}]')
    refused(untouched, "invalid_request", "Key 'two' is not an integer", "tombstone", "a.b.numbers", "1", "two")
    refused(untouched, "invalid_request", "'99999999999'", "tombstone", "a.b.numbers", "1", "99999999999")
    refused(untouched, "invalid_request", "at least one key", "tombstone", "a.b.numbers")


@pytest.mark.parametrize(
    "key", ["sku-1", '["sku-1"]', '["sku-1", 1, 2]', '{"sku": "a"}', '{"sku": "a", "store": 1, "x": 1}']
)
def test_a_composite_key_of_another_shape(untouched: Path, key: str):
    refused(untouched, "invalid_request", "JSON array or object of sku, store", "tombstone", PRICES, '["a", 1]', key)


@pytest.mark.parametrize("key", ['["a", null]', '["a", "x"]', '["a", true]', "[7, 1]"])
def test_a_composite_key_with_a_value_that_does_not_fit(untouched: Path, key: str):
    refused(untouched, "invalid_request", "", "tombstone", PRICES, '["a", 1]', key)


def test_maintenance_of_everything_and_of_one_at_once(untouched: Path):
    for command in ("compact", "vacuum"):
        refused(untouched, "invalid_request", "or pass --all", command)
        refused(untouched, "invalid_request", "or pass --all", command, PEOPLE, "--all")


def test_a_vacuum_below_the_floor(untouched: Path):
    refused(untouched, "invalid_request", "at least 1 h;", "vacuum", PEOPLE, "--retention-hours", "0")


def test_what_destroys_is_not_done_without_an_answer(untouched: Path):
    refused(untouched, "invalid_request", "pass --yes", "drop", PEOPLE)
    refused(untouched, "invalid_request", "pass --yes", "compact", PEOPLE, "--purge")


def test_a_lookup_of_keys_or_columns_that_cannot_be(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", "at least one key", "get", PEOPLE)
    refused(untouched, "invalid_request", "no column 'nope'", "get", PEOPLE, "a", "--columns", "id,nope")
    refused(untouched, "invalid_request", "each once", "get", PEOPLE, "a", "--columns", "id,id")
    refused(untouched, "invalid_request", "JSON array or object of sku, store", "get", PRICES, "a")
    refused(untouched, "invalid_request", "1024 at most", "get", PEOPLE, "x" * 2000)
    refused(untouched, "not_found", "There is no file", "get", PEOPLE, "--file", str(tmp_path / "nothing"))


def test_a_lookup_of_nothing_but_unknown_keys(untouched: Path):
    refused(untouched, "not_found", "no row with that key", "get", PEOPLE, "nobody")
    refused(untouched, "not_found", "any of those keys", "get", PRICES, '["a", 1]', '{"sku": "b", "store": 2}')


def test_a_negative_number_of_rows(untouched: Path):
    refused(untouched, "invalid_request", "must not be negative", "head", PEOPLE, "-n", "-1")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("DROP TABLE crm.sales.people", "exactly one SELECT"),
        ("SELECT 1; SELECT 2", "exactly one SELECT"),
        ("SELECT * FROM people", "three parts"),
        ("SELECT * FROM parquet.`/etc`", "three parts"),
        ("SELEC", ""),
        ("", "exactly one SELECT"),
    ],
)
def test_a_query_that_is_not_allowed(untouched: Path, query: str, says: str):
    refused(untouched, "invalid_request", says, "sql", query)
    refused(untouched, "invalid_request", says, "sql", "-", stdin=query)


def test_a_query_with_wrong_options(untouched: Path):
    refused(untouched, "invalid_request", "1 to 100,000 rows", "sql", f"SELECT * FROM {PEOPLE}", "--max-rows", "0")
    result = silt("--lake", untouched, "--json", "sql", "SELECT 1", "--csv")
    assert (result.code, result.error["kind"]) == (2, "invalid_request")


def test_files_to_load_that_are_not_there_or_not_known(untouched: Path, tmp_path: Path):
    (tmp_path / "x.xml").write_text("<x/>")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "x.parquet")
    refused(untouched, "not_found", "No files to load", "ingest", PEOPLE, tmp_path / "gone" / "*.parquet")
    refused(untouched, "invalid_request", "format", "ingest", PEOPLE, tmp_path / "x.xml")
    refused(untouched, "invalid_request", "'xml'", "ingest", PEOPLE, tmp_path / "x.xml", "--format", "xml")
    refused(
        untouched,
        "invalid_request",
        "column 'nope'",
        "ingest",
        PEOPLE,
        tmp_path / "x.parquet",
        "--order-by",
        "nope",
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ([], "or a database with --jdbc; one of the two"),
        (["x.csv", "--jdbc", "jdbc:postgresql://host/db"], "one of the two"),
        (["x.csv", "--table", "t"], "--table goes with --jdbc"),
        (["x.csv", "--partition-column", "n"], "--partition-column goes with --jdbc"),
        (["--jdbc", "jdbc:postgresql://host/db", "--table", "t", "--reload"], "--reload goes with files"),
        (["--jdbc", "jdbc:postgresql://host/db"], "Name a table or a query"),
        (["--jdbc", "postgresql://host/db", "--table", "t"], "starts with jdbc:"),
        (["--jdbc", "jdbc:postgresql://host/db?password=x", "--table", "t"], "Leave user and password out"),
        (["--jdbc", "jdbc:postgresql://h/db", "--table", "t", "--password-env", "NO_SUCH"], "no variable NO_SUCH"),
    ],
)
def test_a_load_from_nowhere_or_two_places(untouched: Path, call: list[str], says: str):
    refused(untouched, "invalid_request", says, "ingest", PEOPLE, *call)


@pytest.mark.parametrize(
    "call",
    [["nope"], ["list", "--nope"], ["describe"], ["create", "a.b.c"], ["head", PEOPLE, "-n", "many"], ["list", "x"]],
)
def test_a_call_that_cannot_be_read(untouched: Path, call: list[str]):
    refused(untouched, "invalid_request", "--help", *call)


@pytest.mark.parametrize("call", [["list", "--lake"], ["list", "--lake", "--json"], ["--lake", "list"]])
def test_a_lake_option_without_its_value(call: list[str]):
    result = silt(*call)
    assert (result.code, result.out) == (2, "")
    assert "lake" in result.err
    assert "--help" in result.err


def test_no_lake_at_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SILT_LAKE", raising=False)
    result = silt("--json", "list")
    assert (result.code, result.error["kind"]) == (2, "invalid_request")
    assert all(name in result.error["message"] for name in ("--lake", "SILT_LAKE"))


def test_a_setting_that_does_not_fit(untouched: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SILT_MAX_ROWS", "many")
    refused(untouched, "invalid_request", "max_rows", "list")


def test_nothing_called_shows_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "Usage: silt" in capsys.readouterr().out


def test_a_spark_server_that_nobody_would_join_is_not_started(untouched: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SILT_SPARK_SHARED", "no")
    refused(untouched, "invalid_request", "share no Spark server", "spark", "start")
    monkeypatch.setenv("SILT_SPARK_SHARED", "yes")
    monkeypatch.setenv("SILT_SPARK_MASTER", "spark://host:7077")
    refused(untouched, "invalid_request", "share no Spark server", "spark", "start", "--ui")
    refused(untouched, "invalid_request", "There is no Spark UI", "spark", "status", "--ui")


def test_a_slip_in_the_name_of_a_command(untouched: Path):
    refused(untouched, "invalid_request", "Did you mean 'sql'? Try 'silt --help'.", "sqll")


def test_a_key_that_does_not_fit_a_read_does_not_speak_of_writing(untouched: Path):
    result = silt("--lake", untouched, "get", PRICES, '["sku-1", "many"]')
    assert (result.code, "written" in result.err) == (2, False), result
