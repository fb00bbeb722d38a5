"""Output for people: null differs from empty text, times have one form, a shell completes names."""

import re
from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.e2e.conftest import PEOPLE
from tests.e2e.silt import process, silt

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d[:.\d]*(\S*)")


@pytest.fixture
def lake(lake_path: Path) -> Path:
    with Lake.open(lake_path) as made:
        for name in (PEOPLE, "crm.sales.calls", "web.eu.clicks"):
            made.create(name, "id STRING NOT NULL, note STRING, at TIMESTAMP", key="id")
        rows = [("null", None), ("empty", ""), ("dash", "-"), ("text", "NULL")]
        at = "2026-11-15T14:03:00+02:00"
        made.dataset(PEOPLE).upsert([{"id": key, "note": note, "at": at} for key, note in rows])
        made.dataset(PEOPLE).tombstone(["gone"], actor="dpo")
    return lake_path


@pytest.mark.parametrize(
    "call",
    [("head", PEOPLE), ("sql", f"SELECT id, note FROM {PEOPLE}"), ("get", PEOPLE, "null", "empty", "dash", "text")],
)
def test_null_empty_text_a_dash_and_the_word_null_look_different(lake: Path, call: tuple[str, ...]) -> None:
    lines = [line.split() for line in silt("--lake", lake, *call).out.splitlines()[2:]]
    shown = {line[0]: line[1] for line in lines}
    assert shown == {"null": "NULL", "empty": '""', "dash": "-", "text": '"NULL"'}


@pytest.mark.parametrize(
    "call",
    [
        ("head", PEOPLE),
        ("list",),
        ("describe", PEOPLE),
        ("status",),
        ("status", PEOPLE),
        ("history", PEOPLE),
        ("tombstones", PEOPLE),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_every_time_is_in_utc_and_ends_in_z(lake: Path, call: tuple[str, ...], form: tuple[str, ...]) -> None:
    done = silt("--lake", lake, *form, *call)
    assert done.code == 0, done
    found = [match.group(1).strip('",.;)') for match in TIME.finditer(done.out)]
    assert found
    assert set(found) == {"Z"}


def completed(line: str, **variables: str) -> list[str]:
    """Return the completions that bash offers for the last word of a line."""
    words = line.split(" ")
    done = process(_SILT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **variables)
    return sorted(done.out.split())


def test_a_shell_completes_the_names_of_datasets(lake: Path, tmp_path: Path) -> None:
    assert completed("silt head crm.", SILT_LAKE=str(lake)) == ["crm.sales.calls", PEOPLE]
    assert completed(f"silt --lake {lake} status web", SILT_LAKE="") == ["web.eu.clicks"]
    assert completed("silt head crm.", SILT_LAKE=str(tmp_path / "nothing")) == []
