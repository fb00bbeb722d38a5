"""Every refusal has a kind, an exit code and a message that names the error; it changes nothing."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.cli.app import main
from siltstone.dataset.read.export import MARKER as EXPORT_MARKER
from tests.e2e.conftest import PEOPLE, PRICES
from tests.e2e.silt import contents, silt

Facts = str | tuple[str, ...]
"""One or several facts in a message: a name, a number or an option."""
CODES = {"invalid_request": 2, "not_found": 3, "conflict": 4}
SLIPS = re.compile(
    r"(?<!\.)\.\.(?=\s)|\?\.|: :|\b1 (rows|keys|files|hours|columns)\b|\ba [aei]\w|\(s\)|[a-z]= |[a-z]=,"
)
"""Typing errors: a doubled point or colon, a wrong plural or article, the spelling of Python's arguments."""
A_ROW = '{"id": "a"}'
SCHEMA = "id STRING, n INT"


def refused(lake: Path, kind: str, facts: Facts, *call: object, stdin: str = "") -> None:
    """Check a call that must fail: its kind, the facts (names, numbers, options) in its message, and that it has no effect."""
    before = contents(lake)
    result = silt("--lake", lake, "--json", *call, stdin=stdin)
    assert result.error["kind"] == kind, result
    for fact in (facts,) if isinstance(facts, str) else facts:
        assert fact in result.error["message"], (fact, result)
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
def test_a_malformed_name_is_refused(untouched: Path, name: str):
    refused(untouched, "invalid_request", repr(name), "describe", name)
    refused(untouched, "invalid_request", repr(name), "create", name, "--key", "id", "--schema", SCHEMA)


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
def test_an_unknown_dataset_is_not_found(untouched: Path, call: tuple[str, ...]):
    refused(untouched, "not_found", "crm.sales.nobody", *call)


@pytest.mark.parametrize(
    ("kind", "facts", "call"),
    [
        ("invalid_request", "'2026-11-16'", ("head", PEOPLE, "--at", "2026-11-16")),
        ("invalid_request", "'noon'", ("head", PEOPLE, "--at", "noon")),
        ("invalid_request", "2999-01-01", ("head", PEOPLE, "--at", "2999-01-01T00:00Z")),
        ("not_found", ("sequence 1", "0"), ("head", PEOPLE, "--at", "1")),
        ("not_found", "2001-01-01", ("head", PEOPLE, "--at", "2001-01-01T00:00Z")),
        ("invalid_request", ("limit", "1", "0"), ("history", PEOPLE, "--limit", "0")),
        ("invalid_request", "'--limit'", ("history", PEOPLE, "--limit", "all")),
        ("invalid_request", ("limit", "-1"), ("changes", PEOPLE, "--limit", "-1")),
        ("invalid_request", ("since", "-1"), ("changes", PEOPLE, "--since", "-1")),
        ("not_found", "sequence 7", ("changes", PEOPLE, "--since", "7")),
        ("invalid_request", "'xml'", ("export", PEOPLE, "out", "--format", "xml")),
        ("invalid_request", ("'tags'", "array<string>"), ("export", PEOPLE, "out", "--format", "csv")),
        ("invalid_request", ("files", "1", "0"), ("export", PEOPLE, "out", "--files", "0")),
        ("invalid_request", "s3://bucket/out", ("export", PEOPLE, "s3://bucket/out")),
        ("invalid_request", "/", ("export", PEOPLE, "/")),
        ("not_found", "sequence 9", ("export", PEOPLE, "out", "--at", "9")),
    ],
)
def test_reads_of_the_past_and_exports_with_wrong_arguments_are_refused(
    untouched: Path, kind: str, facts: Facts, call: tuple[str, ...]
):
    refused(untouched, kind, facts, *call)


def test_an_export_into_the_lake_or_over_something_else_is_refused(untouched: Path, tmp_path: Path):
    (tmp_path / "letter.txt").write_text("mine")
    refused(untouched, "invalid_request", str(untouched / "out"), "export", PEOPLE, str(untouched / "out"))
    refused(untouched, "invalid_request", str(tmp_path), "export", PEOPLE, str(tmp_path))
    replace = ("export", PEOPLE, str(tmp_path), "--overwrite")
    refused(untouched, "invalid_request", "--yes", *replace)
    refused(untouched, "invalid_request", (str(tmp_path), EXPORT_MARKER), *replace, "--yes")
    assert (tmp_path / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("schema", "key", "facts"),
    [
        ("id STRING, _op STRING", "id", ("'_op'", "'_'")),
        ("id DOUBLE", "id", ("'id'", "double")),
        ("id FLOAT, n INT", "id", ("'id'", "float")),
        ("id STRING", "nope", "'nope'"),
        ("id STRING", ",", "key"),
        ("id STRING", "id,id", ("'id'", "twice")),
        ("id STRING, ID INT", "id", ("'ID'", "twice")),
        ("id", "id", "'id'"),
        ("id STRING, n INTERVAL", "id", "INTERVAL"),
        ("id STRING) AS SELECT (1", "id", "')'"),
        ("id VARCHAR(3)", "id", ("'id'", "VARCHAR(3)")),
        ("id STRING, n INT DEFAULT 5", "id", ("'n'", "DEFAULT")),
        ("id STRING,, n INT", "id", "','"),
    ],
)
def test_an_invalid_schema_or_key_is_refused(untouched: Path, schema: str, key: str, facts: Facts):
    refused(untouched, "invalid_request", facts, "create", "a.b.c", "--key", key, "--schema", schema)


def test_a_subject_that_is_not_a_column_is_refused(untouched: Path):
    create = ("create", "a.b.c", "--key", "id", "--schema", SCHEMA, "--subject", "who")
    refused(untouched, "invalid_request", "'who'", *create)


def test_columns_need_exactly_one_source(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", ("--schema", "--like", "--from"), "create", "a.b.c", "--key", "id")
    both = ("--schema", SCHEMA, "--like", tmp_path / "x.csv")
    refused(untouched, "invalid_request", ("--schema", "--like", "--from"), "create", "a.b.c", "--key", "id", *both)


def test_columns_from_an_unreadable_file_are_refused(untouched: Path, tmp_path: Path):
    (tmp_path / "x.txt").write_text("id\n")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 cut off")
    create = ("create", "a.b.c", "--key", "id", "--like")
    refused(untouched, "not_found", str(tmp_path / "gone.parquet"), *create, tmp_path / "gone.parquet")
    refused(untouched, "invalid_request", ("x.txt", "parquet, csv, json, ndjson"), *create, tmp_path / "x.txt")
    refused(untouched, "invalid_request", "x.parquet", *create, tmp_path / "x.parquet")
    mixed = '{"id": 1}\n{"id": "a"}'
    for number, text in enumerate(("", "[1]", "{", '"text"', mixed, '{"id": null}', '{"id": true}\n{"id": 1}')):
        (tmp_path / f"{number}.json").write_text(text)
        refused(untouched, "invalid_request", f"{number}.json", *create, tmp_path / f"{number}.json")


def test_a_name_that_another_dataset_has_is_a_conflict(untouched: Path):
    other = ("create", PRICES, "--key", "sku", "--schema")
    refused(untouched, "conflict", ("'store', 'price'", "sku, store"), *other, "sku STRING")
    refused(untouched, "conflict", "sku, store", *other, "sku STRING, store BIGINT, price DECIMAL(10,2)")
    same = ("create", PRICES, "--key", "sku,store", "--schema")
    changed = "sku STRING, store INT, price DECIMAL(10,2) NOT NULL, colour STRING"
    facts = ("'colour'", "'store'", "long", "integer", "'price'", "null")
    refused(untouched, "conflict", facts, *same, changed)


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        ({"name": "Ada"}, "'id'"),
        ({"id": None}, "'id'"),
        ({"id": "a", "nope": 1}, "'nope'"),
        ({"id": "a", "_op": "D"}, "'_op'"),
        ({"id": 7}, ("'id'", "7", "string")),
        ({"id": "a", "age": "old"}, ("'age'", "'old'", "integer")),
        ({"id": "a", "age": 2**31}, ("'age'", "2147483648", "integer")),
        ({"id": "a", "age": 2**70}, "'age'"),
        ({"id": "a", "age": 1.5}, ("'age'", "1.5", "integer")),
        ({"id": "a", "age": True}, ("'age'", "True", "integer")),
        ({"id": "a", "score": "high"}, ("'score'", "'high'", "double")),
        ({"id": "a", "pay": "much"}, ("'pay'", "'much'", "decimal(10,2)")),
        ({"id": "a", "pay": "123456789.00"}, "'pay'"),
        ({"id": "a", "born": "yesterday"}, ("'born'", "'yesterday'", "date")),
        ({"id": "a", "born": "2023-02-29"}, "'born'"),
        ({"id": "a", "at": "noon"}, ("'at'", "'noon'", "timestamp")),
        ({"id": "a", "tags": "x"}, "'tags'"),
        ({"id": "a", "tags": [1]}, "'tags'"),
        ({"id": "x" * 1025}, "1024"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(untouched: Path, row: dict[str, object], facts: Facts):
    refused(untouched, "invalid_request", facts, "upsert", PEOPLE, "--row", json.dumps(row))
    refused(untouched, "invalid_request", facts, "upsert", PEOPLE, "-", stdin=json.dumps([{"id": "good"}, row]))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", "empty"),
        ("[]", "empty"),
        ("[1]", ("row 0", "int")),
        ("7", ("row 0", "int")),
        ("{", "JSON"),
        ('{"id": "a"}\nnope\n', ("line 2", "JSON")),
        ('\n\n{"id": "a"}\n\nnope\n', ("line 5", "JSON")),
        ('\nnope\n{"id": "a"}\n', ("line 2", "JSON")),
        ('{"id": "a"\n{"id": "b"}\n', ("line 2", "JSON")),
        ('\n[{"id": "a"},\n{"id" "b"}]\n', ("line 3", "JSON")),
        ("id,name\na,b\n", "JSON"),
    ],
)
def test_input_that_is_not_rows_is_refused(untouched: Path, text: str, facts: Facts):
    refused(untouched, "invalid_request", facts, "upsert", PEOPLE, "-", stdin=text)


def test_rows_need_exactly_one_source(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", "--row", "upsert", PEOPLE)
    refused(untouched, "invalid_request", "--row", "upsert", PEOPLE, "-", "--row", A_ROW)
    refused(untouched, "not_found", str(tmp_path / "gone"), "upsert", PEOPLE, tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    refused(untouched, "invalid_request", "UTF-8", "upsert", PEOPLE, tmp_path / "binary")
    refused(untouched, "invalid_request", "UTF-8", "upsert", PEOPLE, tmp_path)


def test_a_producer_and_its_sequence_need_each_other(untouched: Path):
    refused(
        untouched, "invalid_request", ("producer", "sequence"), "upsert", PEOPLE, "--row", A_ROW, "--producer", "job"
    )
    refused(untouched, "invalid_request", ("producer", "sequence"), "upsert", PEOPLE, "--row", A_ROW, "--sequence", "1")
    negative = ("--producer", "job", "--sequence", "-1")
    refused(untouched, "invalid_request", ("sequence", "0", "-1"), "upsert", PEOPLE, "--row", A_ROW, *negative)


def test_keys_that_do_not_fit_are_named_and_none_is_written(untouched: Path):
    silt("--lake", untouched, "create", "a.b.numbers", "--key", "n", "--schema", "n INT")
    silt("--lake", untouched, "upsert", "a.b.numbers", "-", stdin='[{"n": 1}, {"n": 2}]')
    refused(untouched, "invalid_request", ("'two'", "integer"), "tombstone", "a.b.numbers", "1", "two")
    refused(untouched, "invalid_request", "'99999999999'", "tombstone", "a.b.numbers", "1", "99999999999")
    refused(untouched, "invalid_request", "key", "tombstone", "a.b.numbers")


@pytest.mark.parametrize(
    "key", ["sku-1", '["sku-1"]', '["sku-1", 1, 2]', '{"sku": "a"}', '{"sku": "a", "store": 1, "x": 1}']
)
def test_a_composite_key_of_another_shape_is_refused(untouched: Path, key: str):
    refused(untouched, "invalid_request", ("JSON", "sku, store"), "tombstone", PRICES, '["a", 1]', key)


@pytest.mark.parametrize("key", ['["a", null]', '["a", "x"]', '["a", true]', "[7, 1]"])
def test_a_composite_key_with_a_value_that_does_not_fit_is_refused(untouched: Path, key: str):
    refused(untouched, "invalid_request", "", "tombstone", PRICES, '["a", 1]', key)


def test_maintenance_takes_a_name_or_all_and_not_both(untouched: Path):
    for command in ("compact", "vacuum"):
        refused(untouched, "invalid_request", "--all", command)
        refused(untouched, "invalid_request", "--all", command, PEOPLE, "--all")


def test_a_vacuum_below_the_floor_is_refused(untouched: Path):
    refused(untouched, "invalid_request", "1 h", "vacuum", PEOPLE, "--retention-hours", "0")


def test_destructive_commands_need_a_confirmation(untouched: Path):
    refused(untouched, "invalid_request", "--yes", "drop", PEOPLE)
    refused(untouched, "invalid_request", "--yes", "compact", PEOPLE, "--purge")


def test_a_lookup_with_wrong_keys_or_columns_is_refused(untouched: Path, tmp_path: Path):
    refused(untouched, "invalid_request", "key", "get", PEOPLE)
    refused(untouched, "invalid_request", "'nope'", "get", PEOPLE, "a", "--columns", "id,nope")
    refused(untouched, "invalid_request", (PEOPLE, "column"), "get", PEOPLE, "a", "--columns", "id,id")
    refused(untouched, "invalid_request", ("JSON", "sku, store"), "get", PRICES, "a")
    refused(untouched, "invalid_request", "1024", "get", PEOPLE, "x" * 2000)
    refused(untouched, "not_found", str(tmp_path / "nothing"), "get", PEOPLE, "--file", str(tmp_path / "nothing"))


def test_a_lookup_of_unknown_keys_alone_is_not_found(untouched: Path):
    refused(untouched, "not_found", PEOPLE, "get", PEOPLE, "nobody")
    refused(untouched, "not_found", PRICES, "get", PRICES, '["a", 1]', '{"sku": "b", "store": 2}')


def test_a_negative_number_of_rows_is_refused(untouched: Path):
    refused(untouched, "invalid_request", (PEOPLE, "-1"), "head", PEOPLE, "-n", "-1")


@pytest.mark.parametrize(
    ("query", "facts"),
    [
        ("DROP TABLE crm.sales.people", ("SELECT", "DROP", "line 1, column 1")),
        ("SELECT 1; SELECT 2", ("SELECT", "line 1, column 11")),
        ("SELECT * FROM people", ("people", "catalog.schema.table")),
        ("SELECT * FROM parquet.`/etc`", ("/etc", "catalog.schema.table")),
        ("SELEC", ""),
        ("", "SELECT"),
    ],
)
def test_a_query_that_is_not_allowed_is_refused(untouched: Path, query: str, facts: Facts):
    refused(untouched, "invalid_request", facts, "sql", query)
    refused(untouched, "invalid_request", facts, "sql", "-", stdin=query)


def test_a_query_with_wrong_options_is_refused(untouched: Path):
    refused(untouched, "invalid_request", ("1 ", "100,000"), "sql", f"SELECT * FROM {PEOPLE}", "--max-rows", "0")
    result = silt("--lake", untouched, "--json", "sql", "SELECT 1", "--csv")
    assert (result.code, result.error["kind"]) == (2, "invalid_request")


def test_files_to_load_that_do_not_exist_or_have_an_unknown_format_are_refused(untouched: Path, tmp_path: Path):
    (tmp_path / "x.xml").write_text("<x/>")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "x.parquet")
    refused(untouched, "not_found", str(tmp_path / "gone"), "ingest", PEOPLE, tmp_path / "gone" / "*.parquet")
    refused(untouched, "invalid_request", "format", "ingest", PEOPLE, tmp_path / "x.xml")
    refused(untouched, "invalid_request", "'xml'", "ingest", PEOPLE, tmp_path / "x.xml", "--format", "xml")
    refused(untouched, "invalid_request", "'nope'", "ingest", PEOPLE, tmp_path / "x.parquet", "--order-by", "nope")


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        ([], "--jdbc"),
        (["x.csv", "--jdbc", "jdbc:postgresql://host/db"], "--jdbc"),
        (["x.csv", "--table", "t"], ("--table", "--jdbc")),
        (["x.csv", "--partition-column", "n"], ("--partition-column", "--jdbc")),
        (["x.csv", "--password-env", "HOME"], ("--password-env", "--jdbc")),
        (["--jdbc", "jdbc:postgresql://host/db", "--table", "t", "--no-header"], ("--no-header", "--jdbc")),
        (["--jdbc", "jdbc:postgresql://host/db", "--table", "t", "--reload"], ("--reload", "--jdbc")),
        (["--jdbc", "jdbc:postgresql://host/db"], ("table", "query")),
        (["--jdbc", "postgresql://host/db", "--table", "t"], "jdbc:postgresql://"),
        (["--jdbc", "jdbc:postgresql://host/db?password=x", "--table", "t"], "password"),
        (["--jdbc", "jdbc:postgresql://h/db", "--table", "t", "--password-env", "NO_SUCH"], "NO_SUCH"),
    ],
)
def test_a_load_needs_exactly_one_source(untouched: Path, call: list[str], facts: Facts):
    refused(untouched, "invalid_request", facts, "ingest", PEOPLE, *call)


@pytest.mark.parametrize(
    "call",
    [["nope"], ["list", "--nope"], ["describe"], ["create", "a.b.c"], ["head", PEOPLE, "-n", "many"], ["list", "x"]],
)
def test_a_call_that_cannot_be_parsed_is_refused(untouched: Path, call: list[str]):
    refused(untouched, "invalid_request", "--help", *call)


@pytest.mark.parametrize("call", [["list", "--lake"], ["list", "--lake", "--json"], ["--lake", "list"]])
def test_a_lake_option_without_its_value_is_refused(call: list[str]):
    result = silt(*call)
    assert (result.code, result.out) == (2, "")
    assert "lake" in result.err
    assert "--help" in result.err


def test_a_command_without_a_lake_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SILT_LAKE", raising=False)
    result = silt("--json", "list")
    assert (result.code, result.error["kind"]) == (2, "invalid_request")
    assert all(name in result.error["message"] for name in ("--lake", "SILT_LAKE"))


def test_an_invalid_setting_is_refused(untouched: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SILT_MAX_ROWS", "many")
    refused(untouched, "invalid_request", "max_rows", "list")


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "Usage: silt" in capsys.readouterr().out


def test_a_spark_server_is_not_started_if_the_settings_share_none(untouched: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SILT_SPARK_SHARED", "no")
    refused(untouched, "invalid_request", ("spark_shared", "spark_master"), "spark", "start")
    monkeypatch.setenv("SILT_SPARK_SHARED", "yes")
    monkeypatch.setenv("SILT_SPARK_MASTER", "spark://host:7077")
    refused(untouched, "invalid_request", ("spark_shared", "spark_master"), "spark", "start", "--ui")
    refused(untouched, "invalid_request", "--ui", "spark", "status", "--ui")


def test_a_misspelt_command_names_the_nearest_one(untouched: Path):
    refused(untouched, "invalid_request", ("'sql'", "silt --help"), "sqll")


def test_the_message_for_a_bad_key_of_a_read_does_not_mention_writing(untouched: Path):
    result = silt("--lake", untouched, "get", PRICES, '["sku-1", "many"]')
    assert (result.code, "written" in result.err) == (2, False), result
