"""What the gate lets through, and what Spark is asked then."""

import pytest

from siltstone.errors import InvalidRequest
from siltstone.query.admitted import Admitted, Source
from siltstone.query.gate import MAX_QUERY_CHARS, admit, spark_text
from siltstone.query.written import MAX_TERMS


def named(text: str, *, catalog: str | None = None, schema: str | None = None) -> list[str]:
    return [str(source) for source in admit(text, catalog=catalog, schema=schema).references]


def for_spark(admitted: Admitted) -> str:
    """Write the query over views v0, v1, ... and common table expressions w0, w1, ..."""
    views: dict[Source, str] = {source: f"v{number}" for number, source in enumerate(admitted.references)}
    return spark_text(admitted, views, common="w{}".format)


WRITTEN = {
    "SELECT * FROM crm.sales.t": "SELECT * FROM `v0` AS `t`",
    "select a from crm.sales.t;": "SELECT `a` FROM `v0` AS `t`",
    "SELECT x.a FROM crm.sales.t x": "SELECT `x`.`a` FROM `v0` AS `x`",
    "SELECT t.a FROM `crm`.`sales`.`t`": "SELECT `t`.`a` FROM `v0` AS `t`",
    "SELECT * FROM crm . sales . t": "SELECT * FROM `v0` AS `t`",
    "SELECT * FROM crm./* c */sales.t": "SELECT * FROM `v0` AS `t`",
    "SELECT 'größe' FROM crm.sales.t": "SELECT 'größe' FROM `v0` AS `t`",
    "SELECT * FROM crm.sales.`a-b`": "SELECT * FROM `v0` AS `a-b`",
    "FROM crm.sales.t SELECT a": "SELECT `a` FROM `v0` AS `t`",
    "SELECT crm.sales.t.a FROM crm.sales.t": "SELECT `t`.`a` FROM `v0` AS `t`",
    "SELECT * FROM crm.sales.__raw__t": "SELECT * FROM `v0` AS `__raw__t`",
    "SELECT * FROM crm.sales.t JOIN crm.sales.u USING (a)": "SELECT * FROM `v0` AS `t` JOIN `v1` AS `u` USING (`a`)",
    "SELECT * FROM crm.sales.t a, crm.sales.t b": "SELECT * FROM `v0` AS `a` CROSS JOIN `v0` AS `b`",
    "SELECT * FROM crm.sales.t UNION ALL SELECT * FROM crm.sales.u": (
        "SELECT * FROM `v0` AS `t` UNION ALL SELECT * FROM `v1` AS `u`"
    ),
    "SELECT (SELECT max(a) FROM crm.sales.u) FROM crm.sales.t": (
        "SELECT (SELECT max(`a`) FROM `v0` AS `u`) FROM `v1` AS `t`"
    ),
    "SELECT * FROM crm.sales.t WHERE EXISTS (SELECT 1 FROM crm.sales.u u WHERE u.a = t.a)": (
        "SELECT * FROM `v0` AS `t` WHERE EXISTS (SELECT 1 FROM `v1` AS `u` WHERE `u`.`a` = `t`.`a`)"
    ),
    "WITH x AS (SELECT * FROM crm.sales.t) SELECT * FROM x": (
        "WITH `w0` AS (SELECT * FROM `v0` AS `t`) SELECT * FROM `w0` AS `x`"
    ),
    "WITH t AS (SELECT * FROM crm.sales.t) SELECT * FROM T": (
        "WITH `w0` AS (SELECT * FROM `v0` AS `t`) SELECT * FROM `w0` AS `T`"
    ),
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 9) SELECT * FROM t": (
        "WITH RECURSIVE `w0`(`n`) AS (SELECT 1 UNION ALL SELECT `n` + 1 FROM `w0` AS `t` WHERE `n` < 9) "
        "SELECT * FROM `w0` AS `t`"
    ),
    "SELECT * FROM crm.sales.t LATERAL VIEW OUTER explode(x) e AS y": (
        "SELECT * FROM `v0` AS `t` LATERAL VIEW OUTER explode(`x`) `e` AS `y`"
    ),
    "SELECT * FROM VALUES (1), (2) AS v(x)": "SELECT * FROM VALUES (1), (2) AS `v`(`x`)",
    "SELECT 'a' \"b\" r'\\d' 'it''s' 'x\\n\\u0041'": "SELECT 'ab\\\\dit\\'sx\\u000aA'",
    "SELECT '${env:HOME}'": "SELECT '\\u0024{env:HOME}'",
    "SELECT - - 1, !a, 1.50BD, .5, 3L": "SELECT - - 1, NOT `a`, 1.50BD, .5, 3L",
    "SELECT a::INT, TRY_CAST(a AS ARRAY<STRUCT<b: DECIMAL(10,2)>>)": (
        "SELECT CAST(`a` AS INT), TRY_CAST(`a` AS ARRAY<STRUCT<`b`: DECIMAL(10, 2)>>)"
    ),
    "SELECT sum(a) FILTER (WHERE b) OVER (PARTITION BY c ORDER BY d DESC ROWS 1 PRECEDING)": (
        "SELECT sum(`a`) FILTER (WHERE `b`) OVER (PARTITION BY `c` ORDER BY `d` DESC NULLS LAST ROWS 1 PRECEDING)"
    ),
    "SELECT a FROM crm.sales.t GROUP BY CUBE(a), GROUPING SETS ((a), ())": (
        "SELECT `a` FROM `v0` AS `t` GROUP BY CUBE (`a`), GROUPING SETS ((`a`), ())"
    ),
    "SELECT transform(a, (x, i) -> x.b + i), filter(a, x -> x > 1)": (
        "SELECT transform(`a`, (`x`, `i`) -> `x`.`b` + `i`), filter(`a`, `x` -> `x` > 1)"
    ),
    "SELECT /*+ BROADCAST(t) */ /* a /* nested */ comment */ 1 -- and \\\n more": "SELECT 1",
    "SELECT 1 -- \\\nUNION SELECT 2\n": "SELECT 1",
    "SELECT `group`, `select`, date, `order`.`by` FROM crm.sales.t `order`": (
        "SELECT `group`, `select`, `date`, `order`.`by` FROM `v0` AS `order`"
    ),
    "SELECT a NOT IN (1), a IS NOT NULL, a NOT LIKE 'x' ESCAPE '!', NOT a BETWEEN 1 AND 2": (
        "SELECT `a` NOT IN (1), `a` IS NOT NULL, `a` NOT LIKE 'x' ESCAPE '!', `a` NOT BETWEEN 1 AND 2"
    ),
    "SELECT * FROM (crm.sales.t JOIN crm.sales.u USING (a)) LEFT JOIN crm.sales.t x ON true": (
        "SELECT * FROM (`v0` AS `t` JOIN `v1` AS `u` USING (`a`)) LEFT JOIN `v0` AS `x` ON TRUE"
    ),
    "SELECT 1": "SELECT 1",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_spark_is_asked_in_words_that_can_be_read_in_one_way_only(text: str):
    assert for_spark(admit(text)) == WRITTEN[text]


@pytest.mark.parametrize("text", WRITTEN)
def test_what_was_normalised_is_admitted_again_and_stays_as_it_is(text: str):
    once = admit(text)
    again = admit(once.normalised)
    assert again.normalised == once.normalised
    assert again.references == once.references


def test_spacing_comments_and_case_of_keywords_make_no_other_question():
    plain = admit("SELECT a, count(*) FROM crm.sales.t WHERE b = 'X' GROUP BY a")
    same = admit('select  a,COUNT( * )\n-- comment\nfrom crm . sales.`t` t where b == "X" group /* x */ by a ;')
    other = admit("SELECT a, count(*) FROM crm.sales.t WHERE b = 'x' GROUP BY a")
    assert same.normalised == plain.normalised != other.normalised


def test_tables_without_a_catalog_get_the_default_one():
    assert named("SELECT * FROM t JOIN o.u JOIN x.y.z", catalog="crm", schema="sales") == [
        "crm.sales.t",
        "crm.o.u",
        "x.y.z",
    ]
    assert named("SELECT * FROM o.__raw__u", catalog="crm") == ["crm.o.__raw__u"]
    assert named("WITH t AS (SELECT 1) SELECT * FROM t, s.t", catalog="crm", schema="sales") == ["crm.s.t"]
    given = admit("SELECT * FROM t", catalog="crm", schema="sales")
    assert given.normalised == admit("SELECT * FROM crm.sales.t").normalised
    with pytest.raises(InvalidRequest, match=r"sales\.t at line 1, column 15 .* three parts"):
        named("SELECT * FROM sales.t", schema="sales")


def test_the_catalog_is_part_of_a_name():
    assert named("SELECT * FROM prod.ml.t JOIN staging.ml.t") == ["prod.ml.t", "staging.ml.t"]


def test_references_come_once_and_in_the_order_of_the_text():
    assert named("SELECT (SELECT 1 FROM x.y.a) FROM x.y.b JOIN x.y.b c WHERE c IN (SELECT 1 FROM x.y.d)") == [
        "x.y.a",
        "x.y.b",
        "x.y.d",
    ]


def test_a_tree_can_be_given_other_tables():
    admitted = admit("WITH w AS (SELECT a FROM crm.sales.t) SELECT * FROM w JOIN crm.sales.__raw__t USING (a)")
    names = {source: f"hot_{number}" for number, source in enumerate(admitted.references)}
    assert admitted.with_tables(names).sql("duckdb") == (
        'WITH "w" AS (SELECT "a" FROM "hot_0" AS "t") SELECT * FROM "w" AS "w" JOIN "hot_1" AS "__raw__t" USING ("a")'
    )
    assert "crm" in admitted.tree.sql("duckdb")


def test_functions_and_what_changes_by_itself_are_named():
    admitted = admit("SELECT COUNT(*), extract(YEAR FROM a), now(), CURRENT_DATE FROM crm.sales.t")
    assert admitted.functions == {"count", "extract", "now", "current_date"}
    assert admitted.volatile == {"now", "current_date"}
    assert admit("SELECT `current_timestamp`").volatile == {"current_timestamp"}
    assert not admit("SELECT count(*) FROM crm.sales.t").volatile


SHADOWED = [
    "SELECT * FROM secret JOIN (WITH secret AS (SELECT 1 AS a) SELECT * FROM secret) q",
    "WITH secret AS (SELECT * FROM secret) SELECT * FROM secret",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) q WHERE EXISTS (SELECT 1 FROM x)",
    "SELECT 1 UNION (WITH x AS (SELECT 1) SELECT * FROM x) UNION SELECT * FROM x",
]


@pytest.mark.parametrize("text", SHADOWED)
def test_a_name_is_a_common_table_expression_only_where_that_is_visible(text: str):
    """Elsewhere the engine would look it up among its own tables and views."""
    with pytest.raises(InvalidRequest, match="neither a dataset nor a common table expression"):
        admit(text)


def test_an_inner_common_table_expression_hides_an_outer_one():
    text = "WITH x AS (SELECT 1 a) SELECT * FROM x, (WITH x AS (SELECT 2 a) SELECT * FROM x) y"
    assert for_spark(admit(text)) == (
        "WITH `w0` AS (SELECT 1 AS `a`) SELECT * FROM `w0` AS `x` CROSS JOIN "
        "(WITH `w1` AS (SELECT 2 AS `a`) SELECT * FROM `w1` AS `x`) AS `y`"
    )


REFUSED = {
    "SELECT *\nFROM": r"cannot be read at line 2, column 1, near 'FROM'",
    "SELECT 'x": r"string that begins at line 1, column 8 is not closed",
    "SELECT 1 /* x": r"comment that begins at line 1, column 10 is not closed",
    "SELECT `x FROM y": r"name that begins at line 1, column 8 is not closed",
    "SELECT nope(1)": r"Function nope at line 1, column 8 is not allowed",
    "SELECT a,\n  nope(1)": r"Function nope at line 2, column 3",
    "SELECT CAST(a AS VARIANT)": r"not allowed|cannot be read|not one that a query can cast to",
    "SELECT user": r"t\.user",
    "SELECT 1; SELECT 2": r"second statement begins at line 1, column 11",
    "WITH x AS (SELECT 1), X AS (SELECT 2) SELECT * FROM x": r"two expressions named X; the second is at line 1, column 23",
    "SELECT * FROM a.b.c TABLESAMPLE (10 PERCENT)": r"TABLESAMPLE at line 1, column 21 .*pmod\(xxhash64\(id\), 100\) < 10",
    "SELECT * FROM a.b.c PIVOT (sum(x) FOR k IN (1))": r"PIVOT at line 1, column 21 .*FILTER \(WHERE k = 'a'\)",
    "SELECT * FROM a.b.c UNPIVOT (v FOR n IN (a, b))": r"UNPIVOT at line 1, column 21 .*LATERAL VIEW stack",
    "SELECT a = b IN (c) FROM a.b.c": r"Two comparisons in a row at line 1, column 8 .*\(a = b\) = c",
    "SELECT a BETWEEN 1 AND 2 = b FROM a.b.c": r"Two comparisons in a row",
    "SELECT a = b < c FROM a.b.c": r"Two comparisons in a row",
    "SELECT a = NOT b FROM a.b.c": r"Two comparisons in a row",
    "SELECT 12abc": r"number at line 1, column 8 runs into a name",
    "SELECT a\u00a0b": r"U\+00A0 NO-BREAK SPACE\) at line 1, column 9",
    "SELECT (": r"cannot be read",
    "SELECT * FROM a.b.c.d": r"a\.b\.c\.d at line 1, column 15",
    "VALUES (1)": "begins with 'VALUES'",
    "": "has none",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_refusal_says_what_and_where_in_plain_words(text: str, caplog: pytest.LogCaptureFixture):
    with pytest.raises(InvalidRequest, match=REFUSED[text]) as refused:
        admit(text)
    said = str(refused.value)
    assert not [word for word in ("sqlglot", "Token", "class ", "Required keyword", "Expr") if word in said]
    assert said.endswith(".")
    assert caplog.records == []


def test_a_query_has_a_bounded_length_depth_and_number_of_terms():
    with pytest.raises(InvalidRequest, match="at most 100,000 characters"):
        admit("SELECT 1 " + " " * MAX_QUERY_CHARS)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        admit(f"SELECT {'(' * 500}1{')' * 500}")
    with pytest.raises(InvalidRequest, match="at most 500 operators"):
        admit(f"SELECT 1{' + 1' * (MAX_TERMS + 1)}")
    with pytest.raises(InvalidRequest, match="at most 500 set operations"):
        admit(f"SELECT 1{' UNION SELECT 1' * (MAX_TERMS + 1)}")
    assert admit(f"SELECT 1{' OR a' * MAX_TERMS}").normalised.count("OR") == MAX_TERMS
    assert "8999" in admit(f"SELECT a IN ({', '.join(map(str, range(9_000)))})").normalised


def test_half_a_character_is_refused_with_its_place():
    with pytest.raises(InvalidRequest, match="Character 9 of the query is half a character"):
        admit("SELECT '\ud800' AS x")


def test_a_known_text_is_not_read_again():
    first, second = admit("SELECT :a", parameters={"a": 1}), admit("SELECT :a", parameters={"a": 2})
    assert second.tree is first.tree
    assert (first.parameters, second.parameters) == ({"a": 1}, {"a": 2})
