import pytest

from siltstone.errors import InvalidRequest
from siltstone.query.gate import MAX_QUERY_CHARS, references, rewritten


def named(text: str) -> list[str]:
    return [f"{'raw ' if found.raw else ''}{found.name}" for found in references(text)]


def with_views(text: str) -> str:
    """Rewrite the references to views v0, v1, ... in the order of the text."""
    return rewritten(text, [(found, f"v{number}") for number, found in enumerate(references(text))])


REWRITTEN = {
    "SELECT * FROM crm.sales.t": "SELECT * FROM `v0` AS `t`",
    "select a from crm.sales.t;": "select a from `v0` AS `t`;",
    "SELECT x.a FROM crm.sales.t x": "SELECT x.a FROM `v0` x",
    "SELECT x.a FROM crm.sales.t AS x": "SELECT x.a FROM `v0` AS x",
    "SELECT t.a FROM `crm`.`sales`.`t`": "SELECT t.a FROM `v0` AS `t`",
    "SELECT * FROM crm . sales . t": "SELECT * FROM `v0` AS `t`",
    "SELECT * FROM crm./* c */sales.t": "SELECT * FROM `v0` AS `t`",
    "SELECT * FROM\n  crm.sales.t\nWHERE a > 1": "SELECT * FROM\n  `v0` AS `t`\nWHERE a > 1",
    "SELECT 'größe' FROM crm.sales.t": "SELECT 'größe' FROM `v0` AS `t`",
    "SELECT * FROM crm.sales.`a-b`": "SELECT * FROM `v0` AS `a-b`",
    "FROM crm.sales.t SELECT a": "FROM `v0` AS `t` SELECT a",
    "SELECT * FROM crm.sales.t JOIN crm.sales.u USING (a)": "SELECT * FROM `v0` AS `t` JOIN `v1` AS `u` USING (a)",
    "SELECT * FROM crm.sales.t a, crm.sales.t b": "SELECT * FROM `v0` a, `v1` b",
    "SELECT * FROM crm.sales.t UNION ALL SELECT * FROM crm.sales.u": (
        "SELECT * FROM `v0` AS `t` UNION ALL SELECT * FROM `v1` AS `u`"
    ),
    "SELECT (SELECT max(a) FROM crm.sales.u) FROM crm.sales.t": (
        "SELECT (SELECT max(a) FROM `v0` AS `u`) FROM `v1` AS `t`"
    ),
    "SELECT * FROM (SELECT * FROM crm.sales.t) q": "SELECT * FROM (SELECT * FROM `v0` AS `t`) q",
    "SELECT * FROM crm.sales.t WHERE a IN (SELECT a FROM crm.sales.u)": (
        "SELECT * FROM `v0` AS `t` WHERE a IN (SELECT a FROM `v1` AS `u`)"
    ),
    "SELECT * FROM crm.sales.t WHERE EXISTS (SELECT 1 FROM crm.sales.u u WHERE u.a = t.a)": (
        "SELECT * FROM `v0` AS `t` WHERE EXISTS (SELECT 1 FROM `v1` u WHERE u.a = t.a)"
    ),
    "WITH x AS (SELECT * FROM crm.sales.t) SELECT * FROM x": "WITH x AS (SELECT * FROM `v0` AS `t`) SELECT * FROM x",
    "WITH t AS (SELECT * FROM crm.sales.t) SELECT * FROM t": "WITH t AS (SELECT * FROM `v0` AS `t`) SELECT * FROM t",
    "WITH x AS (SELECT 1 AS a), y AS (SELECT * FROM X) SELECT * FROM Y": (
        "WITH x AS (SELECT 1 AS a), y AS (SELECT * FROM X) SELECT * FROM Y"
    ),
    "SELECT * FROM crm.sales.t LATERAL VIEW explode(x) e AS y": (
        "SELECT * FROM `v0` AS `t` LATERAL VIEW explode(x) e AS y"
    ),
    "SELECT * FROM VALUES (1), (2) AS v(x)": "SELECT * FROM VALUES (1), (2) AS v(x)",
    "SELECT 1": "SELECT 1",
}


@pytest.mark.parametrize("text", REWRITTEN)
def test_each_dataset_is_replaced_by_its_view_and_nothing_else_changes(text: str):
    assert with_views(text) == REWRITTEN[text]


LOOKALIKES = [
    "SELECT 'FROM crm.sales.secret' AS a FROM crm.sales.t",
    "SELECT a -- FROM crm.sales.secret\nFROM crm.sales.t",
    "SELECT a /* crm.sales.secret */ FROM crm.sales.t",
    'SELECT "crm.sales.secret" FROM crm.sales.t',
    "SELECT `crm.sales.secret` FROM crm.sales.t",
    "SELECT crm.sales.secret FROM crm.sales.t crm",
    "SELECT a FROM crm.sales.t -- ; DROP TABLE crm.sales.t",
]


@pytest.mark.parametrize("text", LOOKALIKES)
def test_text_that_only_looks_like_a_dataset_is_left_alone(text: str):
    assert named(text) == ["crm.sales.t"]
    assert with_views(text) == text.replace(
        "FROM crm.sales.t", "FROM `v0`" + ("" if text.endswith(" crm") else " AS `t`"), 1
    )


def test_a_raw_table_is_asked_for_by_its_prefix():
    assert named("SELECT * FROM crm.sales.__raw__t JOIN crm.sales.t u") == ["raw crm.sales.t", "crm.sales.t"]
    assert with_views("SELECT * FROM crm.sales.__raw__t") == "SELECT * FROM `v0` AS `__raw__t`"


STATEMENTS = [
    "",
    ";",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE crm.sales.t",
    "DROP TABLE crm.sales.t",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "INSERT INTO crm.sales.t VALUES (1)",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT 1",
    "FROM crm.sales.t INSERT INTO crm.sales.u SELECT *",
    "DELETE FROM crm.sales.t",
    "UPDATE crm.sales.t SET a = 1",
    "MERGE INTO crm.sales.t USING crm.sales.u ON 1=1 WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE crm.sales.t",
    "ALTER TABLE crm.sales.t ADD COLUMN x INT",
    "SET spark.x = 1",
    "USE x",
    "SHOW TABLES",
    "DESCRIBE crm.sales.t",
    "EXPLAIN SELECT 1",
    "CACHE TABLE x AS SELECT 1",
    "CALL x.y()",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "ADD JAR '/tmp/x.jar'",
    "VALUES (1)",
    "SELECT * FROM",
    "SELEC 1",
    "nonsense",
    "WITH x AS (DELETE FROM crm.sales.t) SELECT * FROM x",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_everything_but_one_select_is_refused(text: str):
    with pytest.raises(InvalidRequest):
        references(text)


OUTSIDE = [
    "SELECT * FROM t",
    "SELECT * FROM sales.t",
    "SELECT * FROM a.b.c.d",
    "SELECT * FROM parquet.`/etc/passwd`",
    "SELECT * FROM PARQUET.`/etc/passwd`",
    "SELECT * FROM csv.`/etc/passwd`",
    "SELECT * FROM text.`file:///etc/passwd`",
    "SELECT * FROM delta.`/data/lake/a/b/c`",
    "SELECT * FROM a.parquet.`/etc/passwd`",
    "SELECT * FROM parquet.`/tmp/a.b`",
    "SELECT * FROM parquet.`a.b`.c",
    "SELECT * FROM `parquet`.`..`.`x`",
    "SELECT * FROM crm.sales.`a b`",
    "SELECT * FROM crm.sales.`t``; DROP`",
    "SELECT * FROM crm._system.t",
    "SELECT * FROM range(10)",
    "SELECT * FROM read_files('/etc')",
    "SELECT * FROM IDENTIFIER('crm.sales.t')",
    "SELECT * FROM sql_keywords()",
    "SELECT * FROM crm.sales.t JOIN parquet.`/etc/passwd`",
    "SELECT (SELECT max(value) FROM text.`/etc/passwd`)",
    "WITH x AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM x",
    "SELECT * FROM crm.sales.t UNION SELECT * FROM other",
    "SELECT * FROM information_schema.tables",
]


@pytest.mark.parametrize("text", OUTSIDE)
def test_whatever_is_not_a_dataset_of_the_lake_is_refused(text: str):
    with pytest.raises(InvalidRequest):
        references(text)


SHADOWED = [
    "SELECT * FROM secret JOIN (WITH secret AS (SELECT 1 AS a) SELECT * FROM secret) q",
    "WITH secret AS (SELECT * FROM secret) SELECT * FROM secret",
    "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
    "SELECT * FROM (WITH x AS (SELECT 1) SELECT * FROM x) q WHERE EXISTS (SELECT 1 FROM x)",
]


@pytest.mark.parametrize("text", SHADOWED)
def test_a_name_is_a_common_table_expression_only_where_that_is_visible(text: str):
    """Elsewhere the engine would look it up among its own tables and views."""
    with pytest.raises(InvalidRequest):
        references(text)


FUNCTIONS = [
    "SELECT java_method('java.lang.System', 'exit', 0)",
    "SELECT JAVA_METHOD('a', 'b')",
    "SELECT `java_method`('a', 'b')",
    "SELECT reflect('a', 'b')",
    "SELECT try_reflect('a', 'b')",
    "SELECT builtin.reflect('a', 'b')",
    "SELECT system.builtin.java_method('a', 'b')",
    "SELECT input_file_name() FROM crm.sales.t",
    "SELECT input_file_block_start() FROM crm.sales.t",
    "SELECT * FROM crm.sales.t WHERE length(input_file_name()) > 1",
]


@pytest.mark.parametrize("text", FUNCTIONS)
def test_functions_that_reach_into_the_process_are_refused_by_name(text: str):
    with pytest.raises(InvalidRequest, match="not allowed"):
        references(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT TRANSFORM(a) USING 'cat /etc/passwd' AS (x) FROM crm.sales.t",
        "SELECT TRANSFORM (*) USING 'sh' FROM crm.sales.t",
        "FROM (FROM crm.sales.t MAP a USING 'sh' AS (b)) q SELECT b",
    ],
)
def test_a_query_cannot_start_a_program(text: str):
    with pytest.raises(InvalidRequest):
        references(text)


def test_a_hint_names_an_alias_and_no_dataset():
    assert named("SELECT /*+ BROADCAST(t) */ * FROM crm.sales.t") == ["crm.sales.t"]


def test_a_comment_after_the_semicolon_is_no_second_statement():
    assert named("SELECT * FROM crm.sales.t; -- done") == ["crm.sales.t"]


def test_a_query_has_a_bounded_length():
    with pytest.raises(InvalidRequest, match="at most"):
        references("SELECT 1 " + " " * MAX_QUERY_CHARS)


def test_references_come_in_the_order_of_the_text():
    assert named("SELECT (SELECT 1 FROM x.y.a) FROM x.y.b WHERE c IN (SELECT 1 FROM x.y.d)") == [
        "x.y.a",
        "x.y.b",
        "x.y.d",
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT FROM",
        "SELECT * FROM a.b.c WHERE (",
        "SELECT 'x",
        "SELECT 1 UNION INSERT INTO x VALUES (1)",
        "SELECT * FROM (INSERT INTO x VALUES (1))",
        "SELECT CAST(x AS NOTATYPE) FROM a.b.c",
        "SELECT TRANSFORM(id) USING 'cat' FROM a.b.c",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "ALTER TABLE x FOO BAR",
    ],
)
def test_a_refusal_is_in_plain_words_and_the_parser_says_nothing(query: str, caplog: pytest.LogCaptureFixture):
    with pytest.raises(InvalidRequest) as refused:
        references(query)
    said = str(refused.value)
    assert not [word for word in ("sqlglot", "Token", "class", "Required keyword", "QUERYTRANSFORM") if word in said]
    assert said.endswith(".")
    assert caplog.records == []


def test_a_query_that_cannot_be_read_says_where():
    with pytest.raises(InvalidRequest, match=r"cannot be read at line 2, column 4, near 'FROM'"):
        references("SELECT *\nFROM")
