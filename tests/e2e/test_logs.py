"""Commands on logs."""

import json
from pathlib import Path

import pytest

from tests.e2e.silt import silt

CLICKS = "web.eu.clicks"
SCHEMA = "at TIMESTAMP, visitor STRING, account BIGINT, region STRING, page STRING"
HOUR = "2026-11-15T14:03:00Z"


@pytest.fixture
def lake(lake_path: Path) -> Path:
    done = silt(
        *("--lake", lake_path, "create", CLICKS, "--time", "at", "--subject", "visitor,account"),
        *("--partition-by", "region", "--sort-by", "visitor,at", "--schema", SCHEMA),
    )
    assert (done.code, CLICKS in done.out) == (0, True)
    return lake_path


def append(lake: Path, *visitors: str) -> None:
    rows = [json.dumps({"at": HOUR, "visitor": visitor, "account": 7}) for visitor in visitors]
    assert silt("--lake", lake, "append", CLICKS, "-", stdin="\n".join(rows)).code == 0


def visitors_of(lake: Path, *options: str) -> list[str]:
    return [row["visitor"] for row in silt("--lake", lake, "--json", "head", CLICKS, *options).data]


def test_rows_are_appended_and_shown(lake: Path):
    done = silt("--lake", lake, "append", CLICKS, "--row", json.dumps({"at": HOUR, "visitor": "V-1"}))
    assert (CLICKS in done.out, "1 row" in done.out) == (True, True)
    append(lake, "V-1", "V-2")
    assert visitors_of(lake) == ["V-1", "V-1", "V-2"]
    assert silt("--lake", lake, "--json", "status", CLICKS).data["kind"] == "log"


def test_a_log_is_listed_and_described(lake: Path):
    assert CLICKS in silt("--lake", lake, "list").out
    described = silt("--lake", lake, "--json", "describe", CLICKS).data
    assert (described["kind"], described["time"], described["sort_by"], described["key"]) == (
        "log",
        "at",
        ["visitor", "at"],
        [],
    )
    shown = silt("--lake", lake, "describe", CLICKS).out
    assert "region" in shown
    assert "visitor, at" in shown


def test_a_bad_row_rejects_the_batch_or_only_itself(lake: Path):
    rows = ["--row", json.dumps({"at": HOUR, "visitor": "V-1"}), "--row", json.dumps({"visitor": "V-2"})]
    refused = silt("--lake", lake, "--json", "append", CLICKS, *rows)
    assert (refused.code, refused.error["kind"]) == (2, "invalid_request")
    assert visitors_of(lake) == []
    done = silt("--lake", lake, "--json", "append", CLICKS, *rows, "--on-bad-row", "skip").data
    [bad] = done.pop("refused")
    assert done == {"sequence": 1, "rows": 1, "applied": True}
    assert (bad["row"], "'at'" in bad["reason"]) == (1, True)
    shown = silt("--lake", lake, "append", CLICKS, *rows[2:], "--on-bad-row", "skip")
    assert [fact for fact in ("Row 0", "'at'") if fact not in shown.out + shown.err] == []
    assert visitors_of(lake) == ["V-1"], "nothing was written"


def test_rows_are_hidden_by_subject(lake: Path):
    append(lake, "V-1", "V-2", "V-3")
    done = silt("--lake", lake, "tombstone", CLICKS, '{"visitor": "V-1"}', '{"visitor": "V-2", "account": "8"}')
    assert done.code == 0
    append(lake, "V-1")
    assert visitors_of(lake) == ["V-2", "V-3", "V-1"]
    assert visitors_of(lake, "--raw") == ["V-1", "V-2", "V-3", "V-1"]
    tombstones = silt("--lake", lake, "--json", "tombstones", CLICKS).data
    assert [(row["visitor"], row["account"]) for row in tombstones] == [("V-1", None), ("V-2", 8)]


def test_one_subject_column_takes_plain_values(lake: Path):
    silt("--lake", lake, "create", "a.b.c", "--time", "at", "--subject", "visitor", "--schema", SCHEMA)
    silt("--lake", lake, "append", "a.b.c", "--row", json.dumps({"at": HOUR, "visitor": "V-1"}))
    assert silt("--lake", lake, "tombstone", "a.b.c", "V-1").code == 0
    assert silt("--lake", lake, "--json", "head", "a.b.c").data == []


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("create", "a.b.c", "--schema", "id STRING"), "--time"),
        (("create", "a.b.c", "--key", "id", "--time", "at", "--schema", "id STRING, at DATE"), "time"),
        (("create", "a.b.c", "--time", "id", "--schema", "id STRING"), "timestamp"),
        (("upsert", CLICKS, "--row", "{}"), CLICKS),
        (("get", CLICKS, "V-1"), CLICKS),
        (("tombstone", CLICKS, "V-1"), "visitor, account"),
        (("tombstone", CLICKS, '{"page": "/"}'), "visitor, account"),
        (("tombstone", CLICKS, '{"account": "x"}'), "'x'"),
        (("append", CLICKS, "--row", "{}", "--on-bad-row", "all"), "reject-batch, skip"),
    ],
)
def test_wrong_arguments_of_a_log_are_refused_by_name(lake: Path, arguments: tuple[str, ...], fact: str):
    done = silt("--lake", lake, "--json", *arguments)
    assert (done.code, done.error["kind"]) == (2, "invalid_request")
    assert fact in done.error["message"]
