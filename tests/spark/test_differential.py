"""Hot engine against Spark: each item of the published subset, and the 22 shapes, with equal columns, types and rows.

The data is small and has every edge of every type. Spark interprets instead of compiling. With hundreds of small
queries, compilation would take most of the time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bench.shapes import SHAPES, tables
from siltstone.spark.session import EXCLUDED_RULES, SUBQUERY_RULES
from tests.differential.comparison import Seen, compare_generated, is_ordered
from tests.differential.data import others, rows
from tests.differential.engines import Hot, OnSpark, differences
from tests.differential.expressions import EXPRESSIONS
from tests.differential.parameters import PARAMETERS
from tests.differential.queries import QUERIES
from tests.differential.subset import ITEMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.legacy.parameterSubstitution.constantsOnly": "true",
    EXCLUDED_RULES: ",".join(SUBQUERY_RULES),
}
Engines = tuple[Hot, OnSpark]


@pytest.fixture(scope="module")
def quick(spark: "SparkSession") -> Iterator["SparkSession"]:
    """The session, configured for many small queries."""
    before = {name: spark.conf.get(name, None) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture(scope="module")
def engines(quick: "SparkSession") -> Engines:
    """Both engines over the same rows."""
    given = {"t": rows(), "o": others()}
    return Hot(given), OnSpark(quick, given)


def compare(engines: Engines, text: str, parameters: dict[str, object] | None = None) -> list[str]:
    """Run a query on both engines, and return the differences."""
    question = text.lstrip("~")
    hot, on_spark = (engine.ask(question, parameters) for engine in engines)
    found = differences(hot, on_spark, ordered=is_ordered(question), close=text.startswith("~"))
    return [f"{question}: {one}" for one in found]


def test_expressions_mean_the_same_on_both_engines(engines: Engines) -> None:
    found: list[str] = []
    for item, expressions in EXPRESSIONS.items():
        shown = ", ".join(f"{expression} AS x{at}" for at, expression in enumerate(expressions))
        hot, on_spark = (engine.ask(f"SELECT id, {shown} FROM lab.d.t") for engine in engines)
        for at, expression in enumerate(expressions):
            names = ["id", f"x{at}"]
            lines = differences(hot.select(names), on_spark.select(names), ordered=False)
            found += [f"{item}: {expression}: {one}" for one in lines]
    assert not found


@pytest.mark.parametrize("half", [0, 1])
def test_queries_mean_the_same_on_both_engines(engines: Engines, half: int) -> None:
    selected = [text for texts in QUERIES.values() for text in texts][half::2]
    assert [line for text in selected for line in compare(engines, text)] == []


def test_parameters_mean_the_same_on_both_engines(engines: Engines) -> None:
    hot, on_spark = engines
    found: list[str] = []
    for text, values in PARAMETERS:
        lines = differences(hot.ask(text, values), on_spark.ask_bound(text, values), ordered=False)
        found += [f"{text}: {one}" for one in lines]
    assert not found


def test_the_22_shapes_mean_the_same_on_both_engines(quick: "SparkSession") -> None:
    given = tables(1_200)
    shop = Hot(given), OnSpark(quick, given)
    found = [line for text in SHAPES.values() for line in compare(shop, text.format(place="lab.d").strip())]
    assert len(SHAPES) == 22
    assert not found


REWRITTEN = (
    *("NOT z LIKE ANY ('a%', '%b')", "z NOT LIKE ANY ('a%', '%b')", "NOT z ILIKE ALL ('A%', '%b')", "NOT z LIKE 'a%'"),
    *(
        "NOT z LIKE '!%' ESCAPE '!'",
        "NOT z RLIKE 'a.*'",
        "NOT n IN (1, NULL)",
        "NOT n BETWEEN 1 AND 2",
        "NOT n IS NULL",
    ),
    *("o IS NOT DISTINCT FROM n = 1", "o IS DISTINCT FROM n = 1", "n = 1 IS NOT DISTINCT FROM o", "n <=> 1 = o"),
    *("n = 1 IS NULL", "NOT n = 1 AND o", "n | k & 3", "n ^ k & 3 | 8", "n & 1 << 2 + 1", "n >> 1", "n >>> 1 | 4"),
    *("n << 33", "id << 65", "-n * 2 % 3", "'1' || 2 + 3", "+'5'", "- - n", "-1::STRING", "~n & 7", "n - (k - 1) - 2"),
    *("n < 2 = o", "NOT o OR n = 1 AND k = 2", "shiftleft(n, 2)", "shiftright(id, 1)", "shiftrightunsigned(n, 1)"),
)


WHOLE = (
    "SELECT k, o, count(*) AS c FROM lab.d.t GROUP BY k, o WITH ROLLUP",
    "SELECT k, o, count(*) AS c, grouping_id(k, o) AS g FROM lab.d.t GROUP BY k, o WITH CUBE",
    "SELECT k, o, count(*) AS c FROM lab.d.t GROUP BY k, o GROUPING SETS ((k), (k, o), ())",
    "SELECT k, o, count(*) AS c FROM lab.d.t GROUP BY k, GROUPING SETS ((o), ())",
    "SELECT * FROM (SELECT k, o, n FROM lab.d.t) PIVOT (sum(n) FOR o IN (true AS yes, false))",
    "SELECT * FROM (SELECT k, o, n FROM lab.d.t) PIVOT (sum(n) AS s, max(k) FOR (o, k) IN ((true, 1) AS one, (false, 2)))",
    "SELECT * FROM (SELECT id, n, k FROM lab.d.t) UNPIVOT (v FOR name IN (n, k AS other)) AS u",
    "SELECT * FROM (SELECT id, n, k FROM lab.d.t) UNPIVOT INCLUDE NULLS ((v, w) FOR name IN ((n, k) AS a, (k, n)))",
    "SELECT * FROM range(3) JOIN range(2, 9, 3) AS r(x) ON id < x",
)


def test_the_gate_sends_spark_the_meaning_that_was_written(engines: Engines) -> None:
    on_spark = engines[1]
    shown = ", ".join(f"{expression} AS x{at}" for at, expression in enumerate(REWRITTEN))
    text = f"SELECT id, {shown} FROM lab.d.t"
    assert differences(on_spark.ask_bound(text, {}), on_spark.ask(text), ordered=False) == []
    selected = [
        f"SELECT k FROM lab.d.t {each} DISTINCT SELECT n FROM lab.d.t" for each in ("UNION", "EXCEPT", "INTERSECT")
    ]
    for text in (*selected, *WHOLE):
        assert differences(on_spark.ask_bound(text, {}), on_spark.ask(text), ordered=False) == [], text


KINDS = (
    *("bool", "int8", "int16", "int32", "int64", "float", "double", "decimal128", "string", "binary", "date32[day]"),
    *("timestamp[us, tz=UTC]", "timestamp[us]", "list", "map", "struct"),
)
OF_TYPES = {item.name for item in ITEMS if item.part == "Types"}
"""Items that are detected by the types of answers."""


@pytest.mark.deep
@pytest.mark.parametrize("group", range(4))
def test_generated_queries_mean_the_same_on_both_engines(quick: "SparkSession", group: int) -> None:
    seen = Seen()
    for seed in range(group * 5, group * 5 + 5):
        compare_generated(quick, 220, seed=seed, seen=seen)
    assert seen.found == []
    assert seen.answered >= 0.85 * seen.queries, seen
    assert seen.with_rows >= 0.75 * seen.queries, seen
    assert seen.gave_way >= 0.01 * seen.queries, seen
    assert sorted(item.name for item in ITEMS if item.name not in OF_TYPES and seen.items[item.name] < 2) == []
    assert [kind for kind in KINDS if seen.kinds[kind] < 3] == []


def test_some_generated_queries_mean_the_same_on_both_engines(quick: "SparkSession") -> None:
    seen = Seen()
    compare_generated(quick, 24, seed=1000, seen=seen)
    assert seen.found == []
    assert seen.answered >= 18, seen
