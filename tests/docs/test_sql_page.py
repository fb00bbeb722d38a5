"""The page of allowed SQL equals the list that the gate uses."""

import re
from pathlib import Path

import pytest

from siltstone.query.gate.admit import admit
from siltstone.query.gate.allowlist import (
    FIELDS_OF_TIME,
    FUNCTIONS,
    FUNCTIONS_BY_GROUP,
    GENERATORS,
    HIDDEN_COLUMNS,
    SESSION_NAMES,
    TYPES,
    VOLATILE,
)
from siltstone.query.gate.tokenizer import OPERATORS, REFUSED_WORDS, TYPE_WORDS

PAGE = re.sub(r"```.*?```", "", (Path(__file__).parents[2] / "docs" / "sql.md").read_text(), flags=re.DOTALL)


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("group", FUNCTIONS_BY_GROUP)
def test_every_function_is_on_the_page_in_its_group_and_no_other(group: str):
    (item,) = re.findall(rf"^- \*\*{group}\*\*: (.+(?:\n  .+)*)", PAGE, flags=re.MULTILINE)
    assert named(item) == set(FUNCTIONS_BY_GROUP[group].split())


def test_no_function_is_in_two_groups():
    every = [name for names in FUNCTIONS_BY_GROUP.values() for name in names.split()]
    assert len(every) == len(FUNCTIONS)
    assert VOLATILE <= FUNCTIONS
    assert GENERATORS <= FUNCTIONS


def test_types_operators_words_and_fields_are_on_the_page():
    listed = named(PAGE)
    for names in (TYPES.values(), FIELDS_OF_TIME, REFUSED_WORDS, SESSION_NAMES, HIDDEN_COLUMNS, VOLATILE):
        assert set(names) <= listed
    assert set(TYPE_WORDS) - {"ARRAY", "MAP", "STRUCT"} <= listed
    assert set(OPERATORS) - set("()[],.:") <= listed


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_of_the_page_passes_the_gate(name: str):
    text = "EXTRACT(YEAR FROM a)" if name == "extract" else f"{name}(a)"
    assert admit(f"SELECT {text} FROM crm.sales.t").functions == {name}
