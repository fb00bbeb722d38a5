import datetime
import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import PEOPLE, PRICES
from tests.e2e.silt import contents, silt
from tests.support.refusals import figures

NEW = "a.b.c"
ADA = {
    "id": "p1",
    "name": "Ada",
    "age": 36,
    "score": 1.5,
    "pay": "1234.56",
    "born": "1815-12-10",
    "at": "2024-01-02T03:04:05Z",
    "tags": ["a", "b"],
}


def rows_of(lake: Path, name: str = PEOPLE, *options: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = silt("--lake", lake, "--json", "head", name, "-n", "1000", *options).data
    return found


def test_a_row_is_read_as_it_was_written(lake: Path):
    done = silt("--lake", lake, "--json", "upsert", PEOPLE, "--row", json.dumps(ADA))
    assert done.data == {"sequence": 1, "rows": 1, "applied": True}
    assert rows_of(lake) == [ADA]


def test_a_json_number_keeps_its_digits_in_a_decimal_column(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "p1", "pay": 0.10, "score": 2.50}')
    found = rows_of(lake)[0]
    assert (found["pay"], found["score"]) == ("0.10", 2.5)


@pytest.mark.parametrize(
    "text",
    [
        '[{"id": "a"}, {"id": "b"}]',
        '\n[\n{"id": "a"},\n{"id": "b"}\n]\n',
        '{"id": "a"}\n\n{"id": "b"}\n',
        '{"id": "a"}\n{"id": "b"}',
    ],
)
def test_rows_come_from_a_file_or_a_pipe_as_an_array_or_by_line(lake: Path, tmp_path: Path, text: str):
    (tmp_path / "rows").write_text(text)
    assert silt("--lake", lake, "upsert", PEOPLE, tmp_path / "rows").code == 0
    assert silt("--lake", lake, "upsert", PEOPLE, "-", stdin=text).code == 0
    assert [row["id"] for row in rows_of(lake)] == ["a", "b"]


def test_one_object_may_span_lines(lake: Path):
    assert silt("--lake", lake, "upsert", PEOPLE, "-", stdin='{\n"id":\n"a"}\n').code == 0
    assert [row["id"] for row in rows_of(lake)] == ["a"]


def test_a_producer_writes_a_sequence_once(lake: Path):
    call = ("--lake", lake, "--json", "upsert", PEOPLE, "--row", '{"id": "a"}', "--producer", "job", "--sequence", "7")
    assert silt(*call).data["applied"] is True
    assert silt(*call).data == {"sequence": 1, "rows": 1, "applied": False}
    for number in ("5", "9"):
        refused = silt(*call[:-1], number)
        assert refused.code == 2
        assert "8" in figures(refused.err).split()
    assert silt(*call[:-1], "8").data == {"sequence": 2, "rows": 1, "applied": True}


def test_upsert_reads_the_json_of_head(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", json.dumps(ADA))
    shown = silt("--lake", lake, "--json", "head", PEOPLE).out
    assert silt("--lake", lake, "upsert", PEOPLE, "-", stdin=shown).code == 0
    assert rows_of(lake) == [ADA]


def test_tombstones_hide_at_once_and_are_listed_until_they_are_folded(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "-", stdin='[{"id": "a"}, {"id": "b"}, {"id": "c"}]')
    done = silt("--lake", lake, "--json", "tombstone", PEOPLE, "a", "c", "--actor", "dpo", "--reason", "request 17")
    assert done.data["rows"] == 2
    assert [row["id"] for row in rows_of(lake)] == ["b"]
    assert [row["id"] for row in rows_of(lake, PEOPLE, "--raw")] == ["a", "b", "c"]
    listed = silt("--lake", lake, "--json", "tombstones", PEOPLE).data
    assert [(row["id"], row["actor"], row["reason"]) for row in listed] == [
        ("a", "dpo", "request 17"),
        ("c", "dpo", "request 17"),
    ]


def test_a_tombstone_of_an_unknown_key_is_accepted_and_matches_no_row(lake: Path):
    assert PEOPLE in silt("--lake", lake, "tombstone", PEOPLE, "nobody").out
    assert silt("--lake", lake, "--json", "tombstone", PEOPLE, "nobody").data["rows_matched"] == 0


def test_composite_keys_are_json_arrays_or_objects(lake: Path, tmp_path: Path):
    rows = [{"sku": s, "store": n} for s in "ab" for n in (1, 2)]
    silt("--lake", lake, "upsert", PRICES, "-", stdin=json.dumps(rows))
    (tmp_path / "keys").write_text('["b", 2]\n')
    done = silt(
        "--lake", lake, "tombstone", PRICES, '["a", 1]', '{"store": 2, "sku": "a"}', "--file", tmp_path / "keys"
    )
    assert done.code == 0
    assert [(row["sku"], row["store"]) for row in rows_of(lake, PRICES)] == [("b", 1)]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("BIGINT", 42, "42"),
        ("DATE", "2024-02-29", "2024-02-29"),
        ("TIMESTAMP", "2024-01-02T03:04:05+00:00", "2024-01-02T03:04:05Z"),
        ("DECIMAL(6,2)", "1.50", "1.50"),
        ("BOOLEAN", True, "true"),
    ],
)
def test_key_text_is_read_as_the_type_of_the_key(lake: Path, kind: str, value: object, text: str):
    silt("--lake", lake, "create", "a.b.c", "--key", "k", "--schema", f"k {kind}")
    assert silt("--lake", lake, "upsert", "a.b.c", "--row", json.dumps({"k": value})).code == 0
    assert silt("--lake", lake, "tombstone", "a.b.c", text).code == 0
    assert rows_of(lake, "a.b.c") == []


def test_get_shows_the_rows_of_keys_in_their_order(lake: Path, tmp_path: Path):
    silt("--lake", lake, "upsert", PEOPLE, "-", stdin=json.dumps([ADA, {"id": "p2"}, {"id": "p3", "name": "Eve"}]))
    silt("--lake", lake, "tombstone", PEOPLE, "p2")
    (tmp_path / "keys").write_text("p3\n\np2\n")
    found = silt("--lake", lake, "--json", "get", PEOPLE, "p1", "--file", tmp_path / "keys", "--columns", "name,age")
    assert (found.code, found.err) == (0, "")
    assert found.data == [{"name": "Ada", "age": 36}, {"name": "Eve", "age": None}]
    raw = silt("--lake", lake, "--json", "get", PEOPLE, "--file", "-", "--raw", stdin="p2\np1\np2\n").data
    assert [row["id"] for row in raw] == ["p2", "p1"]
    assert raw[1] == ADA


def test_get_names_the_keys_that_are_not_there(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}')
    found = silt("--lake", lake, "get", PEOPLE, "x\x1b", "a", "y", "--columns", "name")
    assert (found.code, "x\\x1b, y" in found.err, found.err.count("\n")) == (0, True, 1)
    many = silt("--lake", lake, "get", PEOPLE, "a", *map(str, range(12)))
    assert figures(many.err).split()[-11:] == [*"0123456789", "2"]


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        ("BIGINT", 42, ["42"]),
        ("DATE", "2024-02-29", ["2024-02-29"]),
        ("TIMESTAMP", "2024-01-02T03:04:05Z", ["2024-01-02T03:04:05Z", "2024-01-02T04:04:05+01:00"]),
        ("DECIMAL(6,2)", "1.50", ["1.50", "1.5"]),
        ("BOOLEAN", True, ["true"]),
    ],
)
def test_get_reads_key_text_as_the_type_of_the_key(lake: Path, kind: str, value: object, texts: list[str]):
    silt("--lake", lake, "create", "a.b.c", "--key", "k", "--schema", f"k {kind}")
    silt("--lake", lake, "upsert", "a.b.c", "--row", json.dumps({"k": value}))
    found = silt("--lake", lake, "get", "a.b.c", *texts)
    assert (found.code, found.err) == (0, "")
    assert silt("--lake", lake, "--json", "get", "a.b.c", *texts).data == [{"k": value}]


def test_get_finds_composite_keys(lake: Path):
    rows = [{"sku": s, "store": n} for s in "ab" for n in (1, 2)]
    silt("--lake", lake, "upsert", PRICES, "-", stdin=json.dumps(rows))
    found = silt("--lake", lake, "--json", "get", PRICES, '["b", 2]', '{"store": 1, "sku": "a"}', '["c", 1]').data
    assert [(row["sku"], row["store"]) for row in found] == [("b", 2), ("a", 1)]


def test_columns_can_be_taken_from_a_file(lake: Path, tmp_path: Path):
    pq.write_table(pa.table({"id": ["a"], "n": [1]}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("id,n\na,1\n")
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"id,n\na,1\n"))
    (tmp_path / "x.json").write_text('[{"id": "a"}, {"id": "b", "n": 1}]')
    (tmp_path / "x.ndjson").write_text('{"id": "a", "n": 1}\n{"id": "b"}\n')
    for number, suffix in enumerate(("parquet", "csv", "csv.gz", "json", "ndjson")):
        like = tmp_path / f"x.{suffix}"
        made = silt("--lake", lake, "--json", "create", f"a.b.c{number}", "--key", "id", "--like", like)
        assert {column["name"]: column["type"] for column in made.data["columns"]} == {"id": "string", "n": "long"}


LIKE_LINES = """\
{"id": "a", "at": "2026-01-05T10:00:00Z", "wall": "2026-01-05T10:00:00", "day": "2026-01-05", "x": 1, "tags": [1, null]}
{"id": "b", "at": "2026-01-05T10:00:00+02:00", "wall": "2026-01-05 10:00", "day": null, "x": 1.5, "zip": "007", "s": {"t": true}}
"""
LIKE_TYPES = {
    "id": "string",
    "at": "timestamp",
    "wall": "timestamp_ntz",
    "day": "date",
    "x": "double",
    "zip": "string",
    "tags": "array<long>",
    "s": "struct<t:boolean>",
}
LIKE_CSV = "id,at,wall,day,x,zip\na,2026-01-05T10:00:00Z,2026-01-05T10:00:00,2026-01-05,1.5,007\nb,,,,2,\n"


def test_a_dataset_like_a_file_takes_the_rows_of_that_file(lake: Path, tmp_path: Path):
    (tmp_path / "x.ndjson").write_text(LIKE_LINES)
    (tmp_path / "x.json").write_text(f"[{','.join(LIKE_LINES.splitlines())}]")
    (tmp_path / "x.csv").write_text(LIKE_CSV)
    for number, suffix in enumerate(("ndjson", "json", "csv")):
        like = tmp_path / f"x.{suffix}"
        made = silt("--lake", lake, "--json", "create", f"a.b.c{number}", "--key", "id", "--like", like)
        found = {column["name"]: column["type"] for column in made.data["columns"]}
        assert found == {
            name: kind
            for name, kind in LIKE_TYPES.items()
            if suffix != "csv" or f"{name}," in f"{LIKE_CSV.splitlines()[0]},"
        }
        if suffix != "csv":
            assert silt("--lake", lake, "upsert", f"a.b.c{number}", like).code == 0


def test_create_again_is_the_same_dataset_and_describe_shows_it(lake: Path):
    call = ("--lake", lake, "--json", "create", "a.b.c", "--key", "id", "--schema", "id STRING, n INT")
    first, second = silt(*call).data, silt(*call).data
    assert (first.pop("is_new"), second.pop("is_new")) == (True, False)
    assert first == second
    described = silt("--lake", lake, "--json", "describe", "a.b.c").data
    assert described["key"] == ["id"]
    assert Path(described["path"]).is_dir()


def test_list_and_status_show_every_dataset(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}')
    assert [one["name"] for one in silt("--lake", lake, "--json", "list").data] == [PEOPLE, PRICES]
    people, prices = silt("--lake", lake, "--json", "status").data
    assert (people["backlog_rows"], prices["backlog_rows"]) == (1, 0)
    later = silt("--lake", lake, "--json", "status", PEOPLE).data
    assert later.pop("stale_seconds") > people.pop("stale_seconds") > prices["stale_seconds"]
    assert later == people


def test_people_get_tables(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", json.dumps(ADA))
    assert PEOPLE in silt("--lake", lake, "list").out
    assert re.search(r"\b1 row\b.*\b1\b", silt("--lake", lake, "status", PEOPLE).out)
    assert "id" in silt("--lake", lake, "describe", PEOPLE).out
    assert '["a", "b"]' in silt("--lake", lake, "head", PEOPLE).out
    assert PEOPLE in silt("--lake", lake, "tombstones", PEOPLE).out


def test_control_characters_in_values_never_reach_the_terminal(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", json.dumps({"id": "a", "name": "x\x1b]0;evil\x07\ny [red]z"}))
    shown = silt("--lake", lake, "head", PEOPLE).out
    assert "\x1b" not in shown
    assert "\\x1b" in shown
    assert "[red]z" in shown


def test_a_dry_run_of_compact_shows_the_backlog_and_changes_nothing(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}')
    before = contents(lake)
    shown = silt("--lake", lake, "--json", "compact", PEOPLE, "--dry-run").data
    assert (shown["batches"], shown["change_rows"], shown["files_touched_at_most"]) == (1, 1, 0)
    assert [one["change_rows"] for one in silt("--lake", lake, "--json", "compact", "--all", "--dry-run").data] == [
        1,
        0,
    ]
    assert contents(lake) == before


def test_compact_without_a_backlog_and_vacuum_need_no_spark(lake: Path):
    assert silt("--lake", lake, "--json", "compact", PEOPLE).data["batches_folded"] == 0
    purged = silt("--lake", lake, "--json", "compact", PEOPLE, "--purge", "--yes").data
    assert purged["purged"] is True
    assert len(silt("--lake", lake, "--json", "vacuum", "--all").data) == 2
    assert silt("--lake", lake, "--json", "vacuum", PEOPLE, "--dry-run", "--retention-hours", "2").data["files"] == []


def test_drop_lists_its_effect_in_a_dry_run_and_then_deletes(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}')
    folder = Path(silt("--lake", lake, "--json", "describe", PEOPLE).data["path"])
    before = contents(lake)
    assert silt("--lake", lake, "--json", "drop", PEOPLE, "--dry-run").data["rows"] == 1
    assert contents(lake) == before
    assert silt("--lake", lake, "--json", "drop", PEOPLE, "--yes").data["dropped"] is True
    assert not folder.exists()
    assert [one["name"] for one in silt("--lake", lake, "--json", "list").data] == [PRICES]


def test_a_lake_that_does_not_exist_differs_from_an_empty_one(lake_path: Path, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    for path in (lake_path, tmp_path / "folder"):
        listed = silt("--lake", path, "--json", "list")
        assert (listed.code, listed.data, listed.err) == (0, [], "")
        listed = silt("--lake", path, "list")
        message = listed.err.removesuffix("\n")
        assert (listed.code, listed.out, str(path) in message) == (0, "", True)
        for call in (["status"], ["compact", "--all"], ["vacuum", "--all"], ["describe", PEOPLE], ["head", PEOPLE]):
            refused = silt("--lake", path, "--json", *call)
            assert (refused.code, refused.error) == (3, {"kind": "not_found", "reason": None, "message": message}), call
        assert message in [check["finding"] for check in silt("--lake", path, "--json", "doctor").data["checks"]]
    assert not lake_path.exists()


def test_a_lake_without_datasets_is_an_empty_one(lake: Path):
    for name in (PEOPLE, PRICES):
        silt("--lake", lake, "drop", name, "--yes")
    assert silt("--lake", lake, "--json", "list").data == []
    assert str(lake) not in silt("--lake", lake, "list").err
    assert silt("--lake", lake, "--json", "status").data == []


def test_doctor_looks_at_the_machine_and_the_lake(lake: Path):
    before = contents(lake)
    found = silt("--lake", lake, "--json", "doctor")
    verdicts = {check["name"]: check["verdict"] for check in found.data["checks"]}
    assert verdicts["python"] == verdicts["packages"] == verdicts["lake"] == verdicts["writable"] == "ok"
    assert found.code == (0 if found.data["ok"] else 1)
    assert contents(lake) == before


def test_doctor_fails_where_something_is_wrong(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "lake"):
        found = silt("--lake", path, "--json", "doctor")
        assert found.code == 1
        checks = {check["name"]: check for check in found.data["checks"]}
        for name in ("lake", "writable"):
            assert checks[name]["verdict"] == "failed"
            assert str(tmp_path / "file") in checks[name]["finding"]
        assert checks["disk"]["verdict"] in ("ok", "note")


def test_doctor_notes_unknown_variables(monkeypatch: pytest.MonkeyPatch):
    def environment() -> dict[str, str]:
        checks: list[dict[str, str]] = silt("--json", "doctor").data["checks"]
        return next(check for check in checks if check["name"] == "environment")

    assert environment()["verdict"] == "ok"
    monkeypatch.setenv("SILT_DURABEL", "no")
    assert environment()["verdict"] == "note"
    assert [name for name in ("SILT_DURABEL", "SILT_DURABLE") if name not in environment()["finding"]] == []


def test_columns_are_altered_and_described(lake: Path):
    silt("--lake", lake, "create", NEW, "--schema", "id BIGINT, n INT", "--key", "id")
    silt("--lake", lake, "upsert", NEW, "--row", '{"id": 1, "n": 2}')
    change = ["--add", "source STRING", "--default", "source=import", "--widen", "n=BIGINT", "--tag", "n=web,eu"]
    dry = silt("--lake", lake, "--json", "alter", NEW, *change, "--dry-run").data
    assert [one.split()[0].strip(":") for one in dry["changed"]] == ["n", "n", "source"]
    assert [c["name"] for c in silt("--lake", lake, "--json", "describe", NEW).data["columns"]] == ["id", "n"]
    silt("--lake", lake, "alter", NEW, *change, "--comment", "n=visits = clicks")
    assert silt("--lake", lake, "--json", "head", NEW).data == [{"id": 1, "n": 2, "source": "import"}]
    shown = silt("--lake", lake, "describe", NEW).out
    assert "eu, web" in shown
    assert "visits = clicks" in shown
    assert "already" in silt("--lake", lake, "alter", NEW, *change).out


def test_small_files_of_changes_are_squashed(lake: Path):
    silt("--lake", lake, "create", NEW, "--schema", "id BIGINT, n INT", "--key", "id")
    for number in range(3):
        silt("--lake", lake, "upsert", NEW, "--row", json.dumps({"id": 1, "n": number}))
    assert silt("--lake", lake, "--json", "compact", NEW, "--squash", "--dry-run").data["files_removed"] == 3
    assert silt("--lake", lake, "--json", "status", NEW).data["backlog_files"] == 3
    assert figures(silt("--lake", lake, "compact", NEW, "--squash").out).split()[:2] == ["3", "3"]
    status = silt("--lake", lake, "--json", "status", NEW).data
    assert (status["backlog_files"], status["backlog_batches"]) == (1, 3)
    assert silt("--lake", lake, "--json", "compact", NEW, "--squash").data["files_removed"] == 0


def test_head_shows_an_earlier_moment(lake: Path):
    for name in ("Ada", "Grace", "Edsger"):
        silt("--lake", lake, "upsert", PEOPLE, "--row", json.dumps({"id": "p1", "name": name}))
    silt("--lake", lake, "tombstone", PEOPLE, "p1")
    names = [[row["name"] for row in rows_of(lake, PEOPLE, "--at", str(number))] for number in range(5)]
    assert names == [[], ["Ada"], ["Grace"], ["Edsger"], []]
    assert [row["name"] for row in rows_of(lake, PEOPLE, "--at", "4", "--raw")] == ["Edsger"]
    now = datetime.datetime.now(datetime.UTC).isoformat()  # noqa: TID251
    assert rows_of(lake, PEOPLE, "--at", now) == []


def test_history_shows_commits_as_a_table_and_as_json(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a"}', "--row", '{"id": "b"}')
    silt("--lake", lake, "tombstone", PEOPLE, "a", "--actor", "Grace Hopper")
    entries = silt("--lake", lake, "--json", "history", PEOPLE).data
    assert [entry["operation"] for entry in entries] == ["tombstone", "upsert", "create", "create"]
    assert entries[1] | {"at": "", "pid": 0, "user": "", "bytes_added": 1} == {
        "at": "",
        "table": "changes",
        "version": 1,
        "operation": "upsert",
        "first_sequence": 1,
        "last_sequence": 1,
        "folded_to": None,
        "rows_added": 2,
        "rows_removed": 0,
        "tombstones": 0,
        "files_added": 1,
        "files_removed": 0,
        "bytes_added": 1,
        "bytes_removed": 0,
        "user": "",
        "pid": 0,
        "engine": "siltstone",
        "foreign": False,
        "audit": [],
    }
    shown = silt("--lake", lake, "history", PEOPLE, "--limit", "2").out
    assert [line.split()[1:4] for line in shown.splitlines()[2:]] == [
        ["changes", "2", "tombstone"],
        ["changes", "1", "upsert"],
    ]
    assert re.search(r"Grace Hopper.*\b1 tombstone\b.*\b1 row\b", shown)


def test_changes_can_be_followed_page_by_page(lake: Path):
    for number in range(4):
        rows = [json.dumps({"id": f"{number}-{row}"}) for row in range(3)]
        silt("--lake", lake, "upsert", PEOPLE, *[part for row in rows for part in ("--row", row)])
    silt("--lake", lake, "tombstone", PEOPLE, "0-0", "--actor", "dpo", "--reason", "request 17")
    since, seen = 0, []
    while page := silt("--lake", lake, "--json", "changes", PEOPLE, "--since", since, "--limit", 5).data:
        assert len(page) <= 5
        since = page[-1]["_seq"]
        seen += [(row["_seq"], row["_op"], row["id"]) for row in page]
    assert len(seen) == 13
    assert seen[-1] == (5, "D", "0-0")
    shown = silt("--lake", lake, "changes", PEOPLE, "--since", 4).out
    assert "request 17" in shown
    assert "dpo" in shown


def test_an_update_changes_the_columns_that_it_names(lake: Path):
    silt("--lake", lake, "upsert", PEOPLE, "--row", '{"id": "a", "name": "Ada", "score": 1.5}')
    done = silt("--lake", lake, "update", PEOPLE, "--row", '{"id": "a", "score": 2.5}')
    assert "1 row" in done.out, done
    assert rows_of(lake, PEOPLE)[0]["name"] == "Ada"
    assert rows_of(lake, PEOPLE)[0]["score"] == 2.5
    refused = silt("--lake", lake, "update", PEOPLE, "--row", '{"id": "b", "score": 1.0}')
    assert refused.code == 3
    assert silt("--lake", lake, "update", PEOPLE, "--row", '{"id": "b", "score": 1.0}', "--missing", "insert").code == 0
