"""The published subset: rules, cases and the page agree; unsupported queries name the reason. No Spark."""

import duckdb
import pytest

from siltstone.query.translate import Unsupported
from siltstone.query.translate.expressions import RULES
from tests.differential.data import others, rows
from tests.differential.engines import Hot
from tests.differential.expressions import EXPRESSIONS
from tests.differential.parameters import PARAMETERS
from tests.differential.queries import QUERIES
from tests.differential.refused import GIVES_WAY, OUTSIDE
from tests.differential.subset import ITEMS, NODES, PAGE, PARTS

NAMES = [item.name for item in ITEMS]


@pytest.fixture(scope="module")
def hot() -> Hot:
    return Hot({"t": rows(), "o": others()})


def test_every_rule_belongs_to_one_item_of_the_page():
    published = " ".join(NODES.values()).split()
    assert sorted(published) == sorted({node.__name__ for node in RULES})
    assert NODES.keys() <= set(NAMES)


def test_every_item_has_differential_cases_and_every_case_an_item():
    tried = {*EXPRESSIONS, *QUERIES}
    assert tried <= set(NAMES)
    assert set(NAMES) - tried == {"parameters :name"}
    assert PARAMETERS


def test_the_page_has_a_table_of_items_in_each_section():
    assert [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")] == list(PARTS)
    assert {item.part for item in ITEMS} == set(PARTS)
    assert len(set(NAMES)) == len(NAMES) == PAGE.count("\n| ") - len(PARTS)


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
