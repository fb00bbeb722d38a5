"""Parsing and translating a query costs work in proportion to its text, or is refused. Work is counted in calls, not seconds."""

import sys
from collections.abc import Callable
from types import FrameType

import pyarrow as pa
import pytest
from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import admit, expanded_tables
from siltstone.query.gate.column_check import check_names
from siltstone.query.gate.cross_join_guard import MAX_EXPANDED_TABLES, check_expansion, check_product
from siltstone.query.translate import Unsupported
from siltstone.query.translate.select import Relation, Translated, translate
from tests.support.refusals import refused

T = "crm.sales.t"
SCHEMA = pa.schema([(name, pa.int64()) for name in "abc"])


def translated(text: str, schema: pa.Schema = SCHEMA) -> Translated:
    def relation(table: exp.Table) -> Relation:
        return Relation(sql=table.name, schema=schema)

    return translate(admit(text).tree, tables=relation)


def calls(action: Callable[[], object]) -> int:
    """Count the Python functions that an action calls."""
    counted = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return counted


def listed(form: str, count: int, between: str = ", ") -> str:
    return between.join(form.format(i=i, before=i - 1) for i in range(count))


LONG: dict[str, Callable[[int], str]] = {
    "columns": lambda n: f"SELECT {listed('a AS x{i}', n)} FROM {T}",
    "calls": lambda n: f"SELECT {listed('abs(a + {i}) * (b - 2) AS x{i}', n)} FROM {T}",
    "cases": lambda n: f"SELECT CASE {listed('WHEN a = {i} THEN {i}', n, ' ')} END AS x FROM {T}",
    "windows": lambda n: f"SELECT {listed('sum(a) OVER (ORDER BY b) AS x{i}', n)} FROM {T}",
    "groups by alias": lambda n: f"SELECT {listed('a + {i} AS x{i}', n)} FROM {T} GROUP BY {listed('x{i}', n)}",
    "orders by alias": lambda n: f"SELECT {listed('a + {i} AS x{i}', n)} FROM {T} ORDER BY {listed('x{i} + 1', n)}",
    "columns of a subquery": lambda n: (
        f"SELECT {listed('q.x{i}', n)} FROM (SELECT {listed('a AS x{i}', n)} FROM {T}) q"
    ),
    "names by two parts": lambda n: f"SELECT {listed('t.a + t.b AS x{i}', n)} FROM {T}",
}


@pytest.mark.parametrize("kind", LONG)
def test_four_times_the_text_is_four_times_the_work(kind: str):
    short, long = (LONG[kind](count) for count in (60, 240))
    translated(LONG[kind](10))  # work that is done only once
    assert calls(lambda: translated(long)) < 5 * calls(lambda: translated(short))


def test_common_table_expressions_are_resolved_in_proportion_to_their_number():
    def chain(count: int) -> str:
        return (
            f"WITH w0 AS (SELECT a FROM {T}), {listed('x{i} AS (SELECT a FROM w0)', count)} SELECT * FROM x{count - 1}"
        )

    assert calls(lambda: admit(chain(320))) < 5 * calls(lambda: admit(chain(80)))


def doubling(count: int, form: str) -> str:
    parts = [f"w0 AS (SELECT * FROM {T})", *(f"w{i} AS ({form.format(w=f'w{i - 1}')})" for i in range(1, count + 1))]
    return f"WITH {', '.join(parts)} SELECT * FROM w{count}"


def test_expressions_that_double_are_refused_before_spark_plans_them():
    text = doubling(12, "SELECT x.a FROM {w} x JOIN {w} y ON x.a = y.a")
    assert len(text) < 800
    assert expanded_tables(admit(text).checked) == 4_096
    with refused(InvalidRequest, None, "4.1e3", " 512"):
        check_expansion(admit(text).checked)
    fitting = admit(doubling(9, "SELECT x.a FROM {w} x JOIN {w} y ON x.a = y.a")).checked
    assert expanded_tables(fitting) == MAX_EXPANDED_TABLES
    check_expansion(fitting)


def test_expressions_that_double_are_computed_once_in_memory():
    form = "SELECT x.a FROM {w} x JOIN {w} y ON x.a = y.a"
    assert " AS MATERIALIZED (" in translated(doubling(12, form)).sql
    assert "MATERIALIZED" not in translated(doubling(3, form)).sql


def test_a_long_chain_of_expressions_is_counted_without_nested_calls():
    parts = [f"w0 AS (SELECT a FROM {T})", *(f"w{i} AS (SELECT a FROM w{i - 1})" for i in range(1, 600))]
    chain = admit(f"WITH {', '.join(parts)} SELECT x.a FROM w599 x JOIN w599 y ON x.a = y.a").checked
    assert expanded_tables(chain) == 2
    check_expansion(chain)
    check_names(chain, lambda _table: ("a",))
    check_product(chain, lambda table: pytest.fail(table.name), most=1)


def test_a_recursive_expression_counts_once():
    text = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT * FROM t JOIN t AS u"
    assert expanded_tables(admit(text).checked) == 2


def test_columns_that_double_are_refused():
    assert len(translated(doubling(8, "SELECT x.* FROM {w} x, {w} y")).schema) == 3
    with pytest.raises(InvalidRequest, match="4,096"):
        translated(doubling(12, "SELECT * FROM {w} x, {w} y"))


def test_all_columns_of_a_wide_dataset_are_left_to_spark_but_not_multiplied():
    wide = pa.schema([(f"c{i}", pa.int64()) for i in range(4_097)])
    for text in (
        f"SELECT * FROM {T}",
        f"SELECT x.* FROM {T} x JOIN {T} y ON x.c0 = y.c0",
        f"WITH w AS (SELECT * FROM {T}) SELECT count(*) AS n FROM w",
    ):
        with pytest.raises(Unsupported, match="4,096"):
            translated(text, wide)
    for text in (
        f"SELECT *, * FROM {T}",
        f"SELECT * FROM {T} x JOIN {T} y ON x.c0 = y.c0",
        doubling(3, "SELECT * FROM {w} x, {w} y"),
        doubling(3, "SELECT x.*, y.* FROM {w} x, {w} y"),
    ):
        with pytest.raises(InvalidRequest, match="4,096"):
            translated(text, wide)


def test_an_expression_that_doubles_is_left_to_spark():
    nested = "a"
    for _ in range(14):
        nested = f"(1 / {nested})"
    with pytest.raises(Unsupported, match="100,000"):
        translated(f"SELECT {nested} AS x FROM {T}")


def test_many_tables_are_left_to_spark():
    with pytest.raises(Unsupported, match=r"\b100\b"):
        translated(f"SELECT 1 AS x FROM {listed(f'{T} x{{i}}', 101)}")
