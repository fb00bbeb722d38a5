"""Queries that the gate admits, and the text that it writes for Spark."""

import pytest
from sqlglot import exp

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import MAX_QUERY_CHARS, MAX_QUERY_TOKENS, admit, spark_text
from siltstone.query.gate.checked_query import CheckedQuery, Source
from siltstone.query.gate.parser import parse_plain
from siltstone.query.gate.sql_writer import SqlWriter
from siltstone.query.gate.syntax import MAX_TERMS, check_syntax
from siltstone.query.gate.tokenizer import tokenize
from siltstone.query.gate.tree_comparison import check_same
from tests.support.refusals import refused


def named(text: str, *, catalog: str | None = None, schema: str | None = None) -> list[str]:
    return [str(source) for source in admit(text, catalog=catalog, schema=schema).references]


def for_spark(admitted: CheckedQuery) -> str:
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
    "SELECT NOT a LIKE ANY ('x', 'y'), a NOT LIKE ANY ('x', 'y'), NOT a NOT ILIKE SOME ('x'), !a LIKE ALL ('x')": (
        "SELECT NOT `a` LIKE ANY ('x', 'y'), `a` NOT LIKE ANY ('x', 'y'), NOT `a` NOT ILIKE SOME ('x'), NOT `a` LIKE ALL ('x')"
    ),
    "SELECT NOT a IN (1), NOT a LIKE 'x', NOT a RLIKE 'x', NOT a IS NULL, NOT a IS DISTINCT FROM b": (
        "SELECT `a` NOT IN (1), NOT `a` LIKE 'x', `a` NOT RLIKE 'x', `a` IS NOT NULL, NOT `a` IS DISTINCT FROM `b`"
    ),
    "SELECT a IS NOT DISTINCT FROM b = c, a = b IS NOT DISTINCT FROM c, a <=> b = c, a = b IS NULL": (
        "SELECT `a` <=> (`b` = `c`), (`a` = `b`) <=> `c`, `a` <=> `b` = `c`, `a` = `b` IS NULL"
    ),
    "SELECT +'5', + a, a + + b": "SELECT + '5', + `a`, `a` + + `b`",
    "SELECT a << 2 >> 1 >>> b, CAST(a AS ARRAY<ARRAY<INT>>)": (
        "SELECT `a` << 2 >> 1 >>> `b`, CAST(`a` AS ARRAY<ARRAY<INT>>)"
    ),
    "SELECT 1 UNION DISTINCT SELECT 2 EXCEPT DISTINCT SELECT 3": "SELECT 1 UNION SELECT 2 EXCEPT SELECT 3",
    "SELECT a FROM crm.sales.t GROUP BY a, b WITH ROLLUP": "SELECT `a` FROM `v0` AS `t` GROUP BY `a`, `b` WITH ROLLUP",
    "SELECT a FROM crm.sales.t GROUP BY a WITH CUBE HAVING true": (
        "SELECT `a` FROM `v0` AS `t` GROUP BY `a` WITH CUBE HAVING TRUE"
    ),
    "SELECT a FROM crm.sales.t GROUP BY a, b GROUPING SETS ((a), (a, b), ())": (
        "SELECT `a` FROM `v0` AS `t` GROUP BY `a`, `b` GROUPING SETS ((`a`), (`a`, `b`), ())"
    ),
    "SELECT a FROM crm.sales.t GROUP BY a, b, GROUPING SETS ((a), ())": (
        "SELECT `a` FROM `v0` AS `t` GROUP BY `a`, `b`, GROUPING SETS ((`a`), ())"
    ),
    "SELECT * FROM range(5), range(1, 9, -2) AS r(x)": "SELECT * FROM range(5) CROSS JOIN range(1, 9, - 2) AS `r`(`x`)",
    "SELECT * FROM crm.sales.t x PIVOT (sum(a) AS s, max(b) FOR (c, d) IN ((1, 'x') AS one, (2, 'y')))": (
        "SELECT * FROM `v0` AS `x` PIVOT (sum(`a`) AS `s`, max(`b`) FOR (`c`, `d`) IN ((1, 'x') AS `one`, (2, 'y')))"
    ),
    "SELECT * FROM (SELECT a, b FROM crm.sales.t) PIVOT (count(*) FOR b IN ('x' AS x, 'y')) WHERE x > 1": (
        "SELECT * FROM (SELECT `a`, `b` FROM `v0` AS `t`) PIVOT (count(*) FOR `b` IN ('x' AS `x`, 'y')) WHERE `x` > 1"
    ),
    "SELECT * FROM crm.sales.t UNPIVOT INCLUDE NULLS (v FOR n IN (a, b AS bb)) AS u": (
        "SELECT * FROM `v0` AS `t` UNPIVOT INCLUDE NULLS (`v` FOR `n` IN (`a`, `b` AS `bb`)) AS `u`"
    ),
    "SELECT * FROM crm.sales.t UNPIVOT ((v, w) FOR n IN ((a, b) AS ab, (c, d)))": (
        "SELECT * FROM `v0` AS `t` UNPIVOT ((`v`, `w`) FOR `n` IN ((`a`, `b`) AS `ab`, (`c`, `d`)))"
    ),
    "SELECT `for`, for FROM crm.sales.t": "SELECT `for`, `for` FROM `v0` AS `t`",
    "SELECT 1": "SELECT 1",
}

TREES = {
    "a | b & c": "a | (b & c)",
    "a ^ b & c": "a ^ (b & c)",
    "a | b ^ c": "a | (b ^ c)",
    "a & b << c + d": "a & (b << (c + d))",
    "a || b + c": "(a || b) + c",
    "a + b || c": "(a + b) || c",
    "a - b * c % d": "a - ((b * c) % d)",
    "a < b = c": "(a < b) = c",
    "a = b IS NULL": "(a = b) IS NULL",
    "a + b LIKE c || d": "(a + b) LIKE (c || d)",
    "NOT a = b AND c": "(NOT (a = b)) AND c",
    "NOT a LIKE b OR c": "(NOT (a LIKE b)) OR c",
    "a BETWEEN b AND c AND d": "(a BETWEEN b AND c) AND d",
    "a OR b AND NOT c": "a OR (b AND (NOT c))",
    "- a * b": "(- a) * b",
    "-1::STRING": "CAST(-1 AS STRING)",
    "-a::STRING": "-(a::STRING)",
}


def is_same(one: str, other: str) -> bool:
    """True if the trees of two expressions have the same meaning."""
    trees = [parse_plain(tokenize(text), text) for text in (f"SELECT {one}", f"SELECT {other}")]
    assert trees[0] is not None
    try:
        check_same(trees[0], trees[1], table=lambda table: (table.name,))
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize("text", TREES)
def test_operators_bind_as_in_spark(text: str):
    assert is_same(text, TREES[text])


OTHERS = [
    ("NOT a LIKE ANY ('x', 'y')", "a NOT LIKE ANY ('x', 'y')"),
    ("a LIKE ANY ('x')", "a LIKE ALL ('x')"),
    ("a NOT LIKE 'x'", "a LIKE 'x'"),
    ("NOT a = b", "a = b"),
    ("NOT (a AND b)", "NOT a AND b"),
    ("a - (b - c)", "a - b - c"),
    ("(a | b) & c", "a | b & c"),
    ("a IS NOT DISTINCT FROM b = c", "a <=> b = c"),
    ("a AND b", "a OR b"),
    ("CAST(a AS INT)", "TRY_CAST(a AS INT)"),
    ("a IN (1, 2)", "a IN (2, 1)"),
    ("count(DISTINCT a)", "count(a)"),
    ("x.a", "y.a"),
    ("'A'", "'a'"),
    ("a AS b", "a AS c"),
    ("(SELECT 1 UNION SELECT 2)", "(SELECT 1 UNION ALL SELECT 2)"),
    ("(SELECT 1 FROM t ORDER BY 1)", "(SELECT 1 FROM t ORDER BY 1 DESC)"),
    ("(SELECT 1 FROM t LEFT JOIN u ON a)", "(SELECT 1 FROM t RIGHT JOIN u ON a)"),
    ("sum(a) OVER (ORDER BY b ROWS 1 PRECEDING)", "sum(a) OVER (ORDER BY b ROWS 1 FOLLOWING)"),
    ("t.* EXCEPT (a)", "t.* EXCEPT (b)"),
    ("(SELECT a FROM t GROUP BY a WITH CUBE)", "(SELECT a FROM t GROUP BY a WITH ROLLUP)"),
    ("(SELECT a FROM t GROUP BY a GROUPING SETS ((a)))", "(SELECT a FROM t GROUP BY a, GROUPING SETS ((a)))"),
    ("(SELECT 1 FROM t PIVOT (sum(a) FOR b IN (1)))", "(SELECT 1 FROM t PIVOT (sum(a) FOR c IN (1)))"),
    ("(SELECT 1 FROM range(5))", "(SELECT 1 FROM range(6))"),
]


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_a_rewrite_with_another_meaning_has_another_tree(one: str, other: str):
    assert is_same(one, one)
    assert is_same(other, other)
    assert not is_same(one, other)


def test_a_query_is_refused_if_its_rewrite_would_mean_something_else(monkeypatch: pytest.MonkeyPatch):
    original = SqlWriter.operators

    def swapped(to: SqlWriter, node: exp.Expr) -> str:
        return f"{to.sql(node.expression)} - {to.sql(node.this)}" if isinstance(node, exp.Sub) else original(to, node)

    monkeypatch.setattr(SqlWriter, "operators", swapped)
    with pytest.raises(InvalidRequest):
        admit("SELECT * FROM crm.sales.t WHERE (a - b) = 7001")


@pytest.mark.parametrize("text", WRITTEN)
def test_the_text_for_spark_can_be_parsed_in_one_way_only(text: str):
    assert for_spark(admit(text)) == WRITTEN[text]


@pytest.mark.parametrize("text", WRITTEN)
def test_a_normalised_text_is_admitted_again_unchanged(text: str):
    once = admit(text)
    again = admit(once.normalised)
    assert again.normalised == once.normalised
    assert again.references == once.references


def test_spacing_comments_and_case_of_keywords_do_not_change_the_query():
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
    with refused(InvalidRequest, None, "sales.t", "line 1, column 15"):
        named("SELECT * FROM sales.t", schema="sales")


def test_the_catalog_is_part_of_a_name():
    assert named("SELECT * FROM prod.ml.t JOIN staging.ml.t") == ["prod.ml.t", "staging.ml.t"]


def test_references_come_once_and_in_the_order_of_the_text():
    assert named("SELECT (SELECT 1 FROM x.y.a) FROM x.y.b JOIN x.y.b c WHERE c IN (SELECT 1 FROM x.y.d)") == [
        "x.y.a",
        "x.y.b",
        "x.y.d",
    ]


def test_functions_and_volatile_names_are_listed():
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
    """Elsewhere the engine would resolve it among its own tables and views."""
    with pytest.raises(InvalidRequest, match=r"line 1, column \d+"):
        admit(text)


def test_an_inner_common_table_expression_hides_an_outer_one():
    text = "WITH x AS (SELECT 1 a) SELECT * FROM x, (WITH x AS (SELECT 2 a) SELECT * FROM x) y"
    assert for_spark(admit(text)) == (
        "WITH `w0` AS (SELECT 1 AS `a`) SELECT * FROM `w0` AS `x` CROSS JOIN "
        "(WITH `w1` AS (SELECT 2 AS `a`) SELECT * FROM `w1` AS `x`) AS `y`"
    )


REFUSED = {
    "SELECT *\nFROM": ("line 2, column 1", "'FROM'"),
    "SELECT 'x": ("line 1, column 8",),
    "SELECT 1 /* x": ("line 1, column 10",),
    "SELECT `x FROM y": ("line 1, column 8",),
    "SELECT nope(1)": ("nope", "line 1, column 8"),
    "SELECT a,\n  nope(1)": ("nope", "line 2, column 3"),
    "SELECT CAST(a AS VARIANT)": ("VARIANT",),
    "SELECT user": ("t.user",),
    "SELECT 1; SELECT 2": ("line 1, column 11",),
    "WITH x AS (SELECT 1), X AS (SELECT 2) SELECT * FROM x": ("line 1, column 23",),
    "SELECT * FROM a.b.c TABLESAMPLE (10 PERCENT)": (
        "TABLESAMPLE",
        "line 1, column 21",
        "pmod(xxhash64(id), 100) < 10",
    ),
    "SELECT * FROM a.b.c PIVOT (sum(x) FOR k IN (1)) JOIN a.b.d": ("PIVOT", "UNPIVOT"),
    "SELECT * FROM a.b.c UNPIVOT (v FOR n IN (a + 1, b))": ("UNPIVOT", "line 1"),
    "SELECT * FROM range(10000001)": ("line 1, column 15", "10,000,001", "10,000,000"),
    "SELECT * FROM range(a)": ("line 1, column 15",),
    "SELECT * FROM range(1, 9, 0)": ("0",),
    "INSERT INTO a.b.c VALUES (1)": ("INSERT", "line 1, column 1", "Dataset.upsert", "silt append"),
    "UPDATE a.b.c SET x = 1": ("UPDATE", "line 1, column 1", "silt update", "Dataset.update"),
    "DELETE FROM a.b.c": ("DELETE", "silt tombstone", "Dataset.tombstone"),
    "MERGE INTO a.b.c USING x": ("MERGE", "silt upsert"),
    "CREATE TABLE a.b.c (x INT)": ("CREATE", "silt create", "Lake.create"),
    "DROP TABLE a.b.c": ("DROP", "silt drop", "Lake.drop"),
    "ALTER TABLE a.b.c ADD COLUMN x INT": ("ALTER", "silt alter"),
    "TRUNCATE TABLE a.b.c": ("TRUNCATE", "silt tombstone"),
    "SELECT a = b IN (c) FROM a.b.c": ("line 1, column 8",),
    "SELECT a BETWEEN 1 AND 2 = b FROM a.b.c": ("line 1, column 8",),
    "SELECT a = b < c FROM a.b.c": ("line 1, column 8",),
    "SELECT a = NOT b FROM a.b.c": ("line 1, column 8",),
    "SELECT 12abc": ("line 1, column 8",),
    "SELECT a\u00a0b": ("U+00A0", "NO-BREAK SPACE", "line 1, column 9"),
    "SELECT (": ("line 1, column 8", "'('"),
    "SELECT * FROM a.b.c.d": ("a.b.c.d", "line 1, column 15"),
    "VALUES (1)": ("'VALUES'",),
    "": (),
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_rejection_names_the_part_and_its_position_in_plain_words(text: str, caplog: pytest.LogCaptureFixture):
    with refused(InvalidRequest, None, *REFUSED[text]) as raised:
        admit(text)
    message = str(raised.value)
    assert not [word for word in ("sqlglot", "Token", "class ", "Required keyword", "Expr") if word in message]
    assert message.endswith(".")
    assert caplog.records == []


def test_a_query_has_a_bounded_length_depth_and_number_of_terms():
    with pytest.raises(InvalidRequest, match="100,000"):
        admit("SELECT 1 " + " " * MAX_QUERY_CHARS)
    with refused(InvalidRequest, None, "25,000"):
        admit("SELECT " + "a," * (MAX_QUERY_TOKENS // 2) + "a")
    with pytest.raises(InvalidRequest):
        admit(f"SELECT {'(' * 500}1{')' * 500}")
    with pytest.raises(InvalidRequest, match="500"):
        admit(f"SELECT 1{' + 1' * (MAX_TERMS + 1)}")
    with pytest.raises(InvalidRequest, match="500"):
        admit(f"SELECT 1{' UNION SELECT 1' * (MAX_TERMS + 1)}")
    assert admit(f"SELECT 1{' OR a' * MAX_TERMS}").normalised.count("OR") == MAX_TERMS
    assert "8999" in admit(f"SELECT a IN ({', '.join(map(str, range(9_000)))})").normalised


def test_an_unpaired_surrogate_is_rejected_with_its_position():
    with refused(InvalidRequest, None, " 9 "):
        admit("SELECT '\ud800' AS x")


def test_a_cached_text_is_not_parsed_again():
    first, second = admit("SELECT :a", parameters={"a": 1}), admit("SELECT :a", parameters={"a": 2})
    assert second.tree is first.tree
    assert (first.parameters, second.parameters) == ({"a": 1}, {"a": 2})


def test_a_long_text_is_cached_by_text_and_default_catalog():
    text = f"SELECT n FROM crm.sales.t WHERE n = :value -- {'x' * 10_000}"
    first = admit(text, parameters={"value": 1})
    again = admit(text, parameters={"value": 2})
    assert (again.checked is first.checked, again.parameters) == (True, {"value": 2})
    assert admit(text, parameters={"value": 1}, catalog="crm").checked is not first.checked


@pytest.mark.parametrize("text", WRITTEN)
def test_writing_a_query_does_not_change_its_tree(text: str):
    """Trees are cached, and several threads write them at once."""
    checked = admit(text).checked
    before = repr(checked)
    for_spark(admit(text))
    assert repr(checked) == before


def test_text_in_a_tree_is_rejected_where_it_would_be_written_without_quotes():
    tree = exp.select(exp.Column(this=exp.Identifier(this="a")))
    check_syntax(tree)
    for node in (exp.Alias(this=exp.Null(), alias="x; y"), exp.Tuple(expressions=["x; y"]), exp.Cast(this="x; y")):
        with refused(InvalidRequest, None, "docs/sql.md"):
            check_syntax(exp.Select(expressions=[node]))
