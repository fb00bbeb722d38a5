"""The published subset: rules, items, cases and the page agree; unsupported queries name the reason. No Spark."""

from pathlib import Path

import duckdb
import pytest

from siltstone.query.translate import Unsupported
from siltstone.query.translate.expressions import RULES
from siltstone.query.translate.subset import ANY_ROWS, ERRORS, FLOATS, ITEMS, Item, Part
from tests.differential.data import others, rows
from tests.differential.engines import Hot
from tests.differential.expressions import EXPRESSIONS
from tests.differential.parameters import PARAMETERS
from tests.differential.queries import QUERIES
from tests.differential.refused import GIVES_WAY, OUTSIDE

PAGE = (Path(__file__).parents[3] / "docs" / "sql-hot.md").read_text()


@pytest.fixture(scope="module")
def hot() -> Hot:
    return Hot({"t": rows(), "o": others()})


def test_every_rule_belongs_to_one_item_of_the_published_list():
    published = [node for item in ITEMS for node in item.nodes]
    assert sorted(published) == sorted({node.__name__ for node in RULES})


def test_every_item_has_differential_cases_and_every_case_an_item():
    names = {item.name for item in ITEMS}
    tried = {*EXPRESSIONS, *QUERIES}
    assert tried <= names
    assert names - tried == {"parameters :name"}
    assert PARAMETERS


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_the_page_lists_every_item(item: Item):
    cells = f"| {item.name.replace('|', chr(92) + '|')} | {item.limits} |"
    assert cells in PAGE.split(f"## {item.part.capitalize()}")[1].split("\n## ")[0]


def test_the_page_lists_what_may_differ():
    flat = " ".join(PAGE.split())
    assert FLOATS in flat
    assert ANY_ROWS in flat
    assert ERRORS in flat
    assert [part for part in Part if f"## {part.capitalize()}" not in PAGE] == []


def test_every_case_is_inside_the_subset(hot: Hot):
    queries = [f"SELECT {text} AS x FROM lab.d.t" for texts in EXPRESSIONS.values() for text in texts]
    queries += [text.lstrip("~") for texts in QUERIES.values() for text in texts]
    assert len(queries) > 600
    for text in queries:
        hot.translated(text)


@pytest.mark.parametrize("text", OUTSIDE)
def test_an_unsupported_query_names_the_reason(hot: Hot, text: str):
    with pytest.raises(Unsupported) as raised:
        hot.translated(text)
    assert OUTSIDE[text] in str(raised.value)


@pytest.mark.parametrize("text", GIVES_WAY)
def test_rows_that_the_engines_may_treat_differently_end_the_query(hot: Hot, text: str):
    with pytest.raises(duckdb.Error, match=GIVES_WAY[text]):
        hot.ask(text)


def test_no_name_of_a_user_reaches_the_engine_but_columns_of_its_tables(hot: Hot):
    sql = hot.translated("SELECT n AS `x\"; DROP TABLE t; --` FROM lab.d.t AS `evil\"` WHERE z = 'it is ; --'").sql
    assert "DROP" not in sql
    assert "evil" not in sql
