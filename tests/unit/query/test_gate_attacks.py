"""An attack suite: the gate refuses every text except queries of the lake's datasets, before any engine runs."""

import random
import re
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from siltstone.errors import InvalidRequest
from siltstone.model.names import PARTS
from siltstone.query.gate.admit import admit, spark_text
from siltstone.query.gate.checked_query import Source
from siltstone.query.gate.tokenizer import REFUSED_WORDS, tokenize

DATASETS = {"crm.sales.t", "crm.sales.u"}
T = "crm.sales.t"

STATEMENTS = """
SELECT 1; SELECT 2
SELECT 1;; SELECT 2
SELECT 1; DROP TABLE crm.sales.t
SELECT 1 /* ; */ ; SET x = 1
;
-- nothing
/* SELECT 1 */
DROP TABLE crm.sales.t
CREATE TABLE x AS SELECT 1
CREATE TEMPORARY VIEW v AS SELECT 1
CREATE OR REPLACE TEMPORARY FUNCTION f AS 'x.Y' USING JAR '/tmp/x.jar'
INSERT INTO crm.sales.t VALUES (1)
INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1
INSERT OVERWRITE LOCAL DIRECTORY '/tmp/x' SELECT 1
FROM crm.sales.t INSERT INTO crm.sales.u SELECT *
DELETE FROM crm.sales.t
UPDATE crm.sales.t SET a = 1
MERGE INTO crm.sales.t USING crm.sales.u ON 1=1 WHEN MATCHED THEN DELETE
TRUNCATE TABLE crm.sales.t
ALTER TABLE crm.sales.t ADD COLUMN x INT
SET spark.sql.ansi.enabled = false
SET -v
RESET
SET VAR x = 1
SET VARIABLE x = 1
DECLARE x = 1
DECLARE OR REPLACE VARIABLE x INT DEFAULT 1
USE x
USE CATALOG x
SHOW TABLES
SHOW FUNCTIONS
SHOW CREATE TABLE crm.sales.t
DESCRIBE crm.sales.t
DESC FORMATTED crm.sales.t
DESCRIBE QUERY SELECT 1
EXPLAIN SELECT 1
EXPLAIN EXTENDED SELECT 1
CACHE TABLE x AS SELECT 1
UNCACHE TABLE x
CLEAR CACHE
REFRESH TABLE crm.sales.t
REFRESH '/tmp/x'
REFRESH FUNCTION x
CALL x.y()
CALL system.rollback()
EXECUTE IMMEDIATE 'SELECT 1'
EXECUTE IMMEDIATE 'DROP TABLE x' INTO y
ADD JAR '/tmp/x.jar'
ADD FILE '/etc/passwd'
ADD ARCHIVE '/tmp/x.zip'
LIST JARS
LOAD DATA INPATH '/etc/passwd' INTO TABLE crm.sales.t
LOAD DATA LOCAL INPATH '/etc/passwd' INTO TABLE t
MSCK REPAIR TABLE t
ANALYZE TABLE crm.sales.t COMPUTE STATISTICS
VALUES (1)
TABLE crm.sales.t
TABLE secret
(TABLE secret)
VACUUM crm.sales.t
VACUUM delta.`/data`
OPTIMIZE crm.sales.t
RESTORE TABLE crm.sales.t TO VERSION AS OF 1
CONVERT TO DELTA parquet.`/tmp/x`
GENERATE symlink_format_manifest FOR TABLE delta.`/x`
BEGIN SELECT 1; END
BEGIN DECLARE x INT; SET x = 1; SELECT x; END
START TRANSACTION
COMMIT
GRANT SELECT ON crm.sales.t TO x
KILL 1
ATTACH '/tmp/x.db' AS x
ATTACH 'https://example.org/x.db'
DETACH x
COPY crm.sales.t TO '/tmp/x.csv'
COPY (SELECT 1) TO '/tmp/x.parquet'
COPY crm.sales.t FROM '/etc/passwd'
EXPORT DATABASE '/tmp/x'
IMPORT DATABASE '/tmp/x'
INSTALL httpfs
LOAD httpfs
FORCE INSTALL spatial FROM 'http://example.org'
PRAGMA database_list
PRAGMA show_tables
SUMMARIZE crm.sales.t
CHECKPOINT
PREPARE v AS SELECT 1
EXECUTE v
SET GLOBAL enable_external_access = true
SET enable_external_access = true
PIVOT crm.sales.t ON a
WITH x AS (DELETE FROM crm.sales.t) SELECT * FROM x
WITH x AS (INSERT INTO crm.sales.t VALUES (1)) SELECT 1
WITH x AS (SELECT 1) INSERT INTO crm.sales.t SELECT * FROM x
WITH x AS (SELECT 1) DELETE FROM crm.sales.t
WITH x AS (SELECT 1)
SELECT 1 UNION INSERT INTO x VALUES (1)
SELECT * FROM (INSERT INTO x VALUES (1))
SELECT * FROM (DELETE FROM crm.sales.t)
SELECT * INTO x FROM crm.sales.t
SELECT a INTO OUTFILE '/tmp/x' FROM crm.sales.t
SELECT (DROP TABLE x)
SELECT (SET x = 1)
SELECT TRANSFORM(a) USING 'cat /etc/passwd' AS (x) FROM crm.sales.t
SELECT TRANSFORM (*) USING 'sh' FROM crm.sales.t
FROM (FROM crm.sales.t MAP a USING 'sh' AS (b)) q SELECT b
FROM crm.sales.t REDUCE a USING 'sh' AS (b)
FROM crm.sales.t |> SELECT a
SELECT * FROM crm.sales.t |> WHERE a > 1
SELECT * FROM crm.sales.t |> DROP a
FROM crm.sales.t |> EXTEND reflect('a', 'b')
SELECT FROM
SELECT
SELEC 1
nonsense
SELECT * FROM
SELECT * FROM crm.sales.t WHERE
SELECT * FROM crm.sales.t GROUP BY
SELECT * FROM crm.sales.t ORDER BY
SELECT 1 FROM crm.sales.t JOIN
SELECT , 1
SELECT 1 1 1
SELECT * FROM crm.sales.t t t
SELECT (1
SELECT 1)
SELECT 'x
SELECT "x
SELECT `x
SELECT 1 /*
SELECT 1 /* /* */
SELECT ''' FROM crm.sales.t
"""

RELATIONS = """
SELECT * FROM t
SELECT * FROM sales.t
SELECT * FROM a.b.c.d
SELECT * FROM parquet.`/etc/passwd`
SELECT * FROM PARQUET.`/etc/passwd`
SELECT * FROM `parquet`.`/etc/passwd`
SELECT * FROM csv.`/etc/passwd`
SELECT * FROM json.`s3://bucket/x`
SELECT * FROM orc.`hdfs://host/x`
SELECT * FROM avro.`/x`
SELECT * FROM binaryFile.`/etc/shadow`
SELECT * FROM text.`file:///etc/passwd`
SELECT * FROM text.`/etc/passwd` AS x
SELECT * FROM delta.`/data/lake/a/b/c`
SELECT * FROM delta.`/data/other-lake/crm/sales/t/1/base`
SELECT * FROM delta.`/data/lake/a`@v1
SELECT * FROM spark_catalog.delta.`/data/lake`
SELECT * FROM a.parquet.`/etc/passwd`
SELECT * FROM parquet.`/tmp/a.b`
SELECT * FROM parquet.`a.b`.c
SELECT * FROM `parquet`.`..`.`x`
SELECT * FROM crm.`..`.t
SELECT * FROM `..`.sales.t
SELECT * FROM crm.sales.`..`
SELECT * FROM crm.sales.`../../x/y/z`
SELECT * FROM crm.sales.`a b`
SELECT * FROM crm.sales.`t``; DROP`
SELECT * FROM crm.sales.`t.u`
SELECT * FROM `crm.sales.t`
SELECT * FROM `crm.sales`.t
SELECT * FROM crm._system.t
SELECT * FROM crm.sales._t
SELECT * FROM _system.datasets.base
SELECT * FROM crm.sales.__raw__
SELECT * FROM crm.sales.__raw____raw__t
SELECT * FROM crm.__raw__sales.t
SELECT * FROM ``.``.``
SELECT * FROM 'crm.sales.t'
SELECT * FROM '/etc/passwd'
SELECT * FROM "/etc/passwd"
SELECT * FROM '/etc/passwd.csv'
SELECT * FROM 'https://example.org/x.parquet'
SELECT * FROM 's3://bucket/x.parquet'
SELECT * FROM range(10, 20, 1, 4)
SELECT * FROM range(99999999999999999999)
SELECT * FROM range('5')
SELECT * FROM range(1 + 1)
SELECT * FROM range((SELECT 1))
SELECT * FROM range(rand())
SELECT * FROM range()
SELECT * FROM sales.range(5)
SELECT * FROM `range`(5, 6, 7, 8)
SELECT * FROM crm.sales.range(5)
SELECT * FROM range(5) PIVOT (sum(id) FOR id IN (1))
SELECT * FROM range(10) TABLESAMPLE (1 ROWS)
SELECT * FROM read_files('/etc')
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_csv_auto('/etc/passwd')
SELECT * FROM read_parquet(['a', 'b'])
SELECT * FROM parquet_scan('x')
SELECT * FROM parquet_metadata('x')
SELECT * FROM read_json('x')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM read_blob('/etc/passwd')
SELECT * FROM glob('/etc/*')
SELECT * FROM sniff_csv('x')
SELECT * FROM sqlite_scan('x', 'y')
SELECT * FROM postgres_scan('x', 'y', 'z')
SELECT * FROM delta_scan('x')
SELECT * FROM iceberg_scan('x')
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_extensions()
SELECT * FROM pragma_table_info('t')
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table('t')
SELECT * FROM IDENTIFIER('crm.sales.t')
SELECT * FROM IDENTIFIER('parquet.`/etc/passwd`')
SELECT * FROM IDENTIFIER(:x)
SELECT * FROM identifier('a' || 'b')
SELECT * FROM sql_keywords()
SELECT * FROM variant_explode(x)
SELECT * FROM variant_explode_outer(x)
SELECT * FROM table_changes('t', 1)
SELECT * FROM collations()
SELECT * FROM python_worker_logs()
SELECT * FROM read_statestore('x')
SELECT * FROM statestore('x')
SELECT * FROM cloud_files('/x', 'csv')
SELECT * FROM STREAM crm.sales.t
SELECT * FROM STREAM(crm.sales.t)
SELECT * FROM STREAM read_files('/x')
SELECT * FROM explode(array(1))
SELECT * FROM inline(array(struct(1)))
SELECT * FROM stack(1, 2)
SELECT * FROM my_udtf(TABLE(crm.sales.t))
SELECT * FROM my_udtf(TABLE(SELECT 1))
SELECT * FROM LATERAL read_csv('/etc/passwd')
SELECT * FROM crm.sales.t, LATERAL range(5)
SELECT * FROM crm.sales.t, LATERAL read_csv(a)
SELECT * FROM crm.sales.t LATERAL VIEW read_csv(a) x
SELECT * FROM crm.sales.t LATERAL VIEW range(5) x
SELECT * FROM crm.sales.t LATERAL VIEW reflect('a', 'b') x
SELECT * FROM crm.sales.t JOIN parquet.`/etc/passwd`
SELECT * FROM crm.sales.t NATURAL JOIN text.`/etc/passwd`
SELECT * FROM crm.sales.t, text.`/etc/passwd`
SELECT * FROM crm.sales.t CROSS JOIN secret
SELECT * FROM crm.sales.t LEFT SEMI JOIN secret ON true
SELECT * FROM (crm.sales.t JOIN secret)
SELECT * FROM (secret)
SELECT * FROM ((secret))
SELECT * FROM (SELECT * FROM secret)
SELECT (SELECT max(value) FROM text.`/etc/passwd`)
SELECT * FROM crm.sales.t WHERE a IN (SELECT value FROM text.`/etc/passwd`)
SELECT * FROM crm.sales.t WHERE a IN (TABLE secret)
SELECT (TABLE secret)
SELECT EXISTS (TABLE secret)
SELECT EXISTS (SELECT 1 FROM secret)
SELECT * FROM crm.sales.t WHERE EXISTS (SELECT * FROM secret)
SELECT a FROM crm.sales.t ORDER BY (SELECT max(b) FROM secret)
SELECT a FROM crm.sales.t LIMIT (SELECT max(b) FROM secret)
SELECT a FROM crm.sales.t GROUP BY (SELECT max(b) FROM secret)
SELECT a FROM crm.sales.t HAVING (SELECT max(b) FROM secret) > 1
SELECT sum(a) FILTER (WHERE a IN (SELECT b FROM secret)) FROM crm.sales.t
SELECT sum(a) OVER (ORDER BY (SELECT 1 FROM secret)) FROM crm.sales.t
SELECT CASE WHEN (SELECT 1 FROM secret) = 1 THEN 1 END
SELECT transform(array(1), x -> (SELECT 1 FROM secret))
SELECT array(1)[(SELECT 1 FROM secret)]
SELECT CAST((SELECT 1 FROM secret) AS INT)
SELECT INTERVAL (SELECT 1 FROM secret) DAY
SELECT * FROM VALUES ((SELECT 1 FROM secret)) AS v(a)
SELECT * FROM crm.sales.t LATERAL VIEW explode((SELECT a FROM secret)) x AS y
SELECT * FROM crm.sales.t, LATERAL (SELECT * FROM secret)
SELECT * FROM crm.sales.t JOIN crm.sales.u ON (SELECT 1 FROM secret) = 1
SELECT 1 UNION SELECT * FROM secret
SELECT * FROM secret UNION SELECT 1
SELECT 1 EXCEPT SELECT * FROM secret
SELECT 1 MINUS SELECT * FROM secret
SELECT 1 INTERSECT ALL SELECT * FROM secret
(SELECT 1) UNION (SELECT * FROM secret)
WITH x AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM x
WITH x AS (SELECT * FROM secret) SELECT 1
WITH x AS (SELECT 1), y AS (SELECT * FROM secret) SELECT * FROM x
WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT * FROM secret) SELECT * FROM x
WITH x AS (SELECT * FROM x) SELECT * FROM x
WITH x AS (WITH y AS (SELECT 1) SELECT * FROM y) SELECT * FROM y
WITH `x` AS (SELECT 1) SELECT * FROM `x `
WITH `\u212a` AS (SELECT 1) SELECT * FROM k
WITH k AS (SELECT 1) SELECT * FROM `\u212a`
WITH `\u0130` AS (SELECT 1) SELECT * FROM `i`
WITH stra\u00dfe AS (SELECT 1) SELECT * FROM strasse
SELECT * FROM crm.sales.t UNION SELECT * FROM other
SELECT * FROM information_schema.tables
SELECT * FROM information_schema.columns
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM pg_tables
SELECT * FROM sqlite_master
SELECT * FROM duckdb_tables
SELECT * FROM main.t
SELECT * FROM temp.t
SELECT * FROM memory.main.`t t`
SELECT * FROM spark_catalog.default
SELECT * FROM default.t
SELECT * FROM global_temp.v
SELECT * FROM session.v
SELECT * FROM system.session.v.x
SELECT * FROM silt_0123456789abcdef
SELECT * FROM crm.sales.t VERSION AS OF 1
SELECT * FROM crm.sales.t TIMESTAMP AS OF '2020-01-01'
SELECT * FROM crm.sales.t FOR VERSION AS OF 1
SELECT * FROM crm.sales.t FOR SYSTEM_TIME AS OF now()
SELECT * FROM crm.sales.t@v1
SELECT * FROM crm.sales.t@20200101000000000
SELECT * FROM crm.sales.t TABLESAMPLE (10 PERCENT)
SELECT * FROM crm.sales.t TABLESAMPLE (5 ROWS) x
SELECT * FROM crm.sales.t TABLESAMPLE (BUCKET 1 OUT OF 2)
SELECT * FROM crm.sales.t USING SAMPLE 10
SELECT * FROM parquet.`/x` PIVOT (sum(a) FOR b IN (1, 2))
SELECT * FROM crm.sales.t PIVOT (reflect('a', 'b') FOR b IN (1, 2))
SELECT * FROM crm.sales.t PIVOT (sum(a) FOR b IN (input_file_name()))
SELECT * FROM crm.sales.t PIVOT (sum((SELECT a FROM secret)) FOR b IN (1))
SELECT * FROM crm.sales.t PIVOT (sum(a) FOR b IN (SELECT 1 FROM secret))
SELECT * FROM crm.sales.t PIVOT (sum(a) FOR b IN (1)) AS p
SELECT * FROM (SELECT * FROM crm.sales.t) PIVOT (sum(a) FOR b IN (1)) p
SELECT * FROM crm.sales.t PIVOT (sum(a) b IN (1))
SELECT * FROM crm.sales.t PIVOT (FOR b IN (1))
SELECT * FROM crm.sales.t PIVOT (sum(a) FOR b.c IN (1))
SELECT * FROM crm.sales.t PIVOT (sum(a) FOR b IN (1) FOR c IN (2))
SELECT * FROM crm.sales.t PIVOT sum(a) FOR b IN (1)
SELECT * FROM crm.sales.t u JOIN crm.sales.v PIVOT (sum(a) FOR b IN (1))
SELECT * FROM crm.sales.t LATERAL VIEW explode(x) e PIVOT (sum(a) FOR b IN (1))
SELECT (SELECT 1) PIVOT (sum(a) FOR b IN (1))
SELECT * FROM crm.sales.t UNPIVOT (a FOR b IN (reflect('a', 'b')))
SELECT * FROM crm.sales.t UNPIVOT (a FOR b IN (t.*))
SELECT * FROM crm.sales.t UNPIVOT (a FOR b IN ((SELECT 1 FROM secret)))
SELECT * FROM crm.sales.t UNPIVOT (a FOR (b, c) IN (d))
SELECT * FROM crm.sales.t UNPIVOT INCLUDE (a FOR b IN (d))
SELECT * FROM crm.sales.t UNPIVOT (a FOR b IN (d)) AS u(x)
SELECT a FROM crm.sales.t GROUP BY a WITH
SELECT a FROM crm.sales.t GROUP BY a WITH TOTALS
SELECT a FROM crm.sales.t GROUP BY a WITH ROLLUP b
SELECT a FROM crm.sales.t GROUP BY a WITH ROLLUP WITH CUBE
SELECT a FROM crm.sales.t GROUP BY CUBE (a) WITH ROLLUP
SELECT a FROM crm.sales.t GROUP BY WITH ROLLUP
SELECT a FROM crm.sales.t GROUP BY DISTINCT a
SELECT a FROM crm.sales.t GROUP BY a GROUPING SETS ((reflect('a', 'b')))
SELECT * FROM crm.sales.t WITH (NOLOCK)
SELECT * FROM crm.sales.t WITH ('path' = '/etc/passwd')
SELECT * FROM crm.sales.t WITH (`inferSchema` = 'x')
SELECT * FROM crm.sales.t OPTIONS (path '/x')
SELECT * FROM ONLY crm.sales.t
SELECT * FROM crm.sales.t PARTITION (a = 1)
SELECT * FROM crm.sales.t CROSS APPLY crm.sales.u
SELECT * FROM crm.sales.t MATCH_RECOGNIZE (PATTERN (a))
SELECT * FROM ROWS FROM (read_csv('x'))
SELECT * FROM UNNEST(array(1))
SELECT * FROM JSON_TABLE('[]', '$' COLUMNS (a INT PATH '$'))
SELECT * FROM XMLTABLE('x')
SELECT * FROM OPENJSON('x')
SELECT * FROM {df}
SELECT * FROM ${table}
SELECT * FROM $1
SELECT * FROM ?
SELECT * FROM :t
SELECT * FROM :t.sales.t
SELECT * FROM @t
SELECT * FROM #t
"""

EXPRESSIONS = """
java_method('java.lang.System', 'exit', 0)
JAVA_METHOD('a', 'b')
`java_method`('a', 'b')
java_method /* x */ ('a', 'b')
reflect('java.lang.System', 'getenv', 'HOME')
`reflect`('a', 'b')
try_reflect('a', 'b')
builtin.reflect('a', 'b')
system.builtin.java_method('a', 'b')
`system`.`builtin`.`reflect`('a', 'b')
spark_catalog.default.f(1)
crm.sales.f(1)
crm.sales.t(1)
builtin.count(1)
input_file_name()
`input_file_name`()
input_file_block_start()
input_file_block_length()
_metadata
_metadata.file_path
t._metadata
t._metadata.file_path
`_METADATA`.file_name
crm.sales.t._metadata.file_path
struct(t.*)._metadata
monotonically_increasing_id()
spark_partition_id()
version()
current_user()
current_user
CURRENT_USER
`current_user`
session_user
session_user()
user
user()
`User`
current_database()
current_database
current_catalog
current_catalog()
current_schema
current_schema()
current_path()
current_timezone()
current_role()
current_setting('x')
getenv('HOME')
getvariable('x')
session_window(a, '1 minute')
window(a, '1 minute')
from_avro(a, 'x')
from_avro(a, '{}', map('avroSchemaUrl', 'file:///etc/passwd'))
to_avro(a)
schema_of_avro('x')
from_protobuf(a, 'x', '/etc/passwd')
to_protobuf(a, 'x', '/etc/passwd')
from_csv(a, 'b INT')
from_xml(a, 'b INT')
schema_of_xml(a)
to_xml(a)
xpath('<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><a>&e;</a>', 'a/text()')
xpath_string(a, 'b')
xpath_int(a, 'b')
xpath_boolean(a, 'b')
parse_url('http://x', 'HOST')
try_parse_url('http://x', 'HOST')
parse_json('{}')
try_parse_json('{}')
variant_get(a, '$', 'int')
is_variant_null(a)
ai_query('x', 'y')
ai_gen('x')
http_request('x')
secret('a', 'b')
try_secret('a', 'b')
aes_encrypt('a', 'b')
aes_decrypt('a', 'b')
raise_error('x')
try_remote('x')
my_udf(1)
unknown_function(1)
hll_sketch_agg(a)
load_extension('x')
pg_read_file('/etc/passwd')
pg_sleep(100)
sleep(100)
benchmark(1, 2)
readfile('/etc/passwd')
read_text('/etc/passwd')
read_blob('/etc/passwd')
writefile('a', 'b')
sys_eval('x')
system('x')
exec('x')
eval('x')
dblink('x')
lo_import('x')
nextval('s')
currval('s')
set_config('a', 'b', false)
txid_current()
pg_backend_pid()
query_table('x')
columns('a.*')
IDENTIFIER('java_method')('a')
IDENTIFIER('a')
identifier(:x)
COLUMNS('x')
$x
@x
@@version
?
?1
{fn now()}
{d '2020-01-01'}
{x}
{{x}}
${env:HOME}
${x}
a#b
a\\b
a:b
a:b:c
a::
a:::int
a:=1
a->b
a->>'b'
a #> 'b'
a @> b
a ?| b
a ~~ b
a !~ b
a SIMILAR TO b
a OVERLAPS b
a GLOB b
a COLLATE UNICODE
a AT TIME ZONE 'x'
a < < 1
a <<< 1
a > > 1
a >>>> 1
a >> > 1
a >>= 1
a + NOT b
a || NOT b
a IS NULL IS NULL
a IS NULL::INT
a NOT NULL
a IN (1) IN (2)
a LIKE ANY ()
a LIKE ANY (SELECT 'x')
a LIKE ANY (reflect('a', 'b'))
a LIKE ALL (current_user)
a NOT ILIKE SOME (input_file_name())
a LIKE ANY ('x') ESCAPE '!'
a << reflect('a', 'b')
a ** 2
a // 2
a ?? b
a IS JSON
a IS OF (int)
a = ANY (SELECT 1)
a = ALL (SELECT 1)
ANY (SELECT 1)
NEXT VALUE FOR s
()
ROW(1, 2)
[1, 2]
a[1:2]
a[1, 2]
a[]
ARRAY[1, 2]
MAP {'a': 1}
MAP['a', 1]
STRUCT<a INT>(1)
CAST(a AS VARIANT)
CAST(a AS my_type)
CAST(a AS `my_type`)
CAST(a AS JSON)
CAST(a AS OBJECT)
CAST(a AS VOID)
CAST(a AS UUID)
CAST(a AS VARCHAR(10))
CAST(a AS CHAR)
CAST(a AS INT FORMAT 'x')
CAST(a AS DECIMAL(x))
CAST(a AS DECIMAL('10'))
CAST(a AS DECIMAL(100000))
CAST(a AS INT[])
CAST(a AS ENUM('a'))
CAST(a AS STRUCT<b INT COMMENT 'x'>)
CAST(a AS STRUCT<b INT NOT NULL>)
CAST(a AS INTERVAL)
CAST(a, 'int')
CONVERT(INT, a)
CONVERT(a USING utf8)
SAFE_CAST(a AS INT)
TRY_CONVERT(INT, a)
EXTRACT(foo FROM a)
EXTRACT('x' FROM a)
EXTRACT(`YEAR ` FROM a)
INTERVAL a DAY
INTERVAL (a) DAY
INTERVAL :x DAY
INTERVAL - (SELECT 1) DAY
INTERVAL 1
INTERVAL '1' DAY TO foo
DATE_TRUNC(a, b, c => d)
f(a => 1)
count(a => 1)
count(a := 1)
count(TABLE a)
count(SELECT 1 FROM secret)
count(*) KEEP (DENSE_RANK FIRST ORDER BY a)
count(*) OVER (GROUPS 1 PRECEDING)
count(*) OVER (ROWS BETWEEN 1 AND 2)
count(*) OVER (ORDER BY a ROWS 1 PRECEDING EXCLUDE TIES)
sum(a ORDER BY b)
array_agg(a ORDER BY b LIMIT 1)
max(a HAVING MAX b)
string_agg(a, ',' ON OVERFLOW TRUNCATE)
JSON_OBJECT('a': 1)
JSON_OBJECTAGG('a': 1)
JSON_ARRAY(1)
XMLELEMENT(NAME a)
MATCH(a) AGAINST ('x')
OPENJSON(a)
GROUP_CONCAT(a SEPARATOR ',')
x -> x
(x, y) -> x
* EXCEPT
* REPLACE (1 AS a)
* RENAME (a AS b)
* EXCLUDE (a)
* ILIKE 'a'
a 'b'
a "b"
b'101'
n'abc'
e'abc'
x'zz'
x'1'' OR 1'
0x1F
1_000
12abc
1.2.3
.
..
a.
.a
a..b
a.'b'
a.1
'a
"a
`a
``
a b c
1 2
(
)
(a
a)
a,
,a
not
and
a and
a =
case
case when a
case when a then
case a end
case when a then 1
cast(a as)
cast(a int)
cast(as int)
in (1)
a in
a in ()
a in (
a in 1
a between 1
a between 1 and
a is 1
a not
a like
distinct
distinct a from
\ufeff1
\u200b1
1\u200b
a\u00a0+ 1
\u2028 1
\uff11
\u0430bc
caf\u00e9
a\u0000b
`a\u0000b`
`a\u200bb`
`${env:HOME}`
'\u0000' || \u0000
a\u2212b
\u2018a\u2019
\uff08a\uff09
a\uff1bDROP
1\u037e
/*+ x */ */
a /* b
a */ b
a /* /* b */
-- a
"""

MORE_STATEMENTS = [
    "SELECT 1; -- x\n DROP TABLE crm.sales.t",
    "SELECT java_method\t\n('a', 'b')",
    "SELECT 1\n;\nSELECT 2",
]

ACCEPTED_EXPRESSIONS = [
    "a << 1",
    "a >>> 1",
    "a LIKE ALL ('x')",
    "a is true",
    "(a)",
    "a.b",
    "a -- b",
    "a /* /* b */ */",
    "'\\0'",
]


def lines(block: str) -> list[str]:
    """Return the cases of a block, one per line; Python has expanded their escapes `\\n` and `\\uXXXX`."""
    return [line for line in block.strip("\n").split("\n") if line]


def refused(text: str) -> str:
    with pytest.raises(InvalidRequest) as error:
        admit(text, parameters={"x": 1, "t": 1} if ":" in text and "::" not in text else None)
    message = str(error.value)
    assert message.endswith(".")
    assert "sqlglot" not in message
    return message


@pytest.mark.parametrize("text", [*lines(STATEMENTS), *MORE_STATEMENTS])
def test_everything_but_one_select_is_refused(text: str):
    refused(text)


@pytest.mark.parametrize("text", lines(RELATIONS))
def test_every_relation_but_a_dataset_is_refused(text: str):
    refused(text)


@pytest.mark.parametrize("expression", lines(EXPRESSIONS))
def test_expressions_that_reach_beyond_the_rows_or_cannot_be_read_are_refused(expression: str):
    refused(f"SELECT {expression} FROM {T} t")


@pytest.mark.parametrize("expression", lines(EXPRESSIONS))
def test_such_expressions_are_refused_in_every_clause(expression: str):
    for text in (
        f"SELECT 1 FROM {T} t WHERE ({expression}\n) IS NULL",
        f"SELECT 1 FROM {T} t ORDER BY ({expression}\n)",
        f"WITH x AS (SELECT ({expression}\n) AS y FROM {T} t) SELECT 1",
    ):
        refused(text)


@pytest.mark.parametrize("expression", ACCEPTED_EXPRESSIONS)
def test_similar_harmless_expressions_pass(expression: str):
    assert [str(source) for source in admit(f"SELECT {expression}\n FROM {T} t").references] == [T]


@pytest.mark.parametrize("word", sorted(REFUSED_WORDS))
def test_words_of_other_statements_are_names_only_in_backticks(word: str):
    assert word in refused(f"SELECT a FROM {T} {word}")
    assert admit(f"SELECT `{word}` FROM {T}").normalised.startswith(f"SELECT `{word}`")


LOOKALIKES = [
    "SELECT 'FROM crm.sales.secret' AS a FROM crm.sales.t",
    "SELECT a -- FROM crm.sales.secret\nFROM crm.sales.t",
    "SELECT a /* crm.sales.secret */ FROM crm.sales.t",
    "SELECT a /* /* */ FROM crm.sales.secret -- */ FROM crm.sales.t",
    "SELECT a -- \\\nFROM crm.sales.secret\nFROM crm.sales.t",
    'SELECT "crm.sales.secret" FROM crm.sales.t',
    "SELECT `crm.sales.secret` FROM crm.sales.t",
    "SELECT crm.sales.secret FROM crm.sales.t crm",
    "SELECT a FROM crm.sales.t -- ; DROP TABLE crm.sales.t",
    "SELECT r'\\' , ' FROM crm.sales.secret ' FROM crm.sales.t",
    "SELECT 'it''s FROM crm.sales.secret' FROM crm.sales.t",
    "SELECT 'a\\' FROM crm.sales.secret -- ' FROM crm.sales.t",
    "SELECT /*+ BROADCAST(crm.sales.secret) */ a FROM crm.sales.t",
    "SELECT a FROM crm.sales.t `FROM secret`",
    "SELECT 1 AS `; DROP TABLE x` FROM crm.sales.t",
    "SELECT '\\u0027 FROM crm.sales.secret' FROM crm.sales.t",
    "SELECT '\\047 FROM crm.sales.secret' FROM crm.sales.t",
]


@pytest.mark.parametrize("text", LOOKALIKES)
def test_text_that_only_looks_like_a_dataset_is_not_a_reference(text: str):
    assert [str(source) for source in admit(text).references] == ["crm.sales.t"]


def test_the_text_for_spark_has_nothing_that_an_engine_substitutes():
    admitted = admit("SELECT '${env:HOME}', r'$$', \"${spark.x}\", :p AS `a$b`", parameters={"p": "${env:HOME}"})
    assert "$" not in spark_text(admitted, {}, common=str).replace("`a$b`", "")


def test_a_parameter_value_stays_one_string_literal():
    for value in ("x; DROP TABLE y", "' OR '1'='1", "\\' OR 1 -- ", "`", "\n--", "*/", "${env:HOME}", "\x00", "\\"):
        admitted = admit(f"SELECT a FROM {T} WHERE a = :p", parameters={"p": value})
        sent = spark_text(admitted, {admitted.references[0]: "v"}, common=str)
        (read,) = [token.text for token in tokenize(sent) if token.token_type is TokenType.STRING]
        assert read == value


DEEP = {
    "parentheses": ("(", "1", ")"),
    "functions": ("abs(", "1", ")"),
    "functions in parentheses": ("abs((", "1", "))"),
    "types as functions": ("date(", "1", ")"),
    "structs": ("struct(", "1", ")"),
    "decimals": ("decimal(", "1", ")"),
    "cases": ("CASE WHEN a THEN ", "1", " END"),
    "subqueries": ("(SELECT ", "1", ")"),
    "casts": ("CAST(", "1", " AS INT)"),
    "nested types": ("CAST(a AS ARRAY<", "ARRAY<INT>", ">"),
    "lambdas": ("transform(a, x -> ", "1", ")"),
    "windows": ("sum(a) OVER (ORDER BY ", "1", ")"),
    "brackets": ("a[", "1", "]"),
    "negations": ("NOT ", "a", ""),
    "signs": ("- ", "1", ""),
    "in lists": ("a IN (", "1", ")"),
    "comparisons": ("a = (b < ", "1", ")"),
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting_is_refused_quickly(kind: str):
    before, inner, after = DEEP[kind]
    began = time.process_time()
    for depth in (15, 200, 5_000):
        text = f"SELECT {before * depth}{inner}{after * depth}"[:99_000]
        with suppress(InvalidRequest):
            admit(text)
    assert time.process_time() - began < 20  # seconds; an exponential parser would need far longer


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 FROM crm.sales.t" + " JOIN crm.sales.t" * 300,
        "SELECT 1 FROM crm.sales.t" + " LEFT JOIN (crm.sales.t" * 200 + ")" * 200,
        "SELECT 1 FROM crm.sales.t" + ", crm.sales.t" * 1_000,
        "SELECT 1 FROM " + "(" * 300 + "crm.sales.t" + ")" * 300,
        "SELECT " + "a," * 5_000 + "a",
        "SELECT " + "'a' " * 20_000,
        "SELECT " + "/*" * 40_000,
        "SELECT " + "'" * 90_001,
        "SELECT " + "`" * 90_001,
        "SELECT " + "\\" * 90_000,
        "SELECT " + "9" * 90_000,
        "SELECT " + "a." * 10_000 + "a",
        "SELECT " + ":a " * 20_000,
        "WITH " + ", ".join(f"x{number} AS (SELECT 1)" for number in range(500)) + " SELECT 1 FROM x499",
        "SELECT " + "CASE " * 15_000,
        "(" * 20_000,
        "SELECT " + "x -> " * 15_000 + "1",
        "SELECT abs(" + "(a), " * 3_000 + "1)",
    ],
    ids=range(18),
)
def test_long_repetitive_texts_are_checked_quickly(text: str):
    began = time.process_time()
    with suppress(InvalidRequest):
        admit(text)
    assert time.process_time() - began < 30  # seconds, also on a busy machine


VALID = [
    f"SELECT a, count(*) AS n FROM {T} WHERE b > 1 AND c LIKE 'x%' GROUP BY a HAVING count(*) > 2 ORDER BY n DESC LIMIT 3",
    f"WITH x AS (SELECT a FROM {T}), y AS (SELECT * FROM x JOIN crm.sales.u USING (a)) SELECT * FROM y UNION ALL SELECT 1",
    f"SELECT sum(a) OVER (PARTITION BY b ORDER BY c ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM {T} t, crm.sales.u u",
    f"SELECT * FROM {T} LATERAL VIEW explode(a) e AS f WHERE EXISTS (SELECT 1 FROM crm.sales.u WHERE u.a = f)",
    f"SELECT transform(a, x -> x + 1)[0].b, CASE WHEN c THEN 'd' ELSE \"e\" END, CAST(f AS ARRAY<INT>) FROM {T} -- end",
    f"SELECT /* c */ t.`a b`, (SELECT max(a) FROM crm.sales.u), r'x\\', 1.5e3, DATE '2020-01-01' FROM (SELECT * FROM {T}) t",
]
PIECES = [
    *"()`'\"\\,.;:*-/+=<>[]{}$#@!|&%~\n\t ",
    "--",
    "/*",
    "*/",
    "''",
    "``",
    " FROM ",
    " JOIN ",
    " secret ",
    "text.`/etc/passwd`",
    " SELECT ",
    " UNION SELECT * FROM secret ",
    " WITH secret AS (SELECT 1) ",
    " WITH ",
    " AS ",
    " TABLE secret ",
    " LATERAL ",
    " VIEW ",
    "reflect(",
    "r'",
    "\\u0027",
    "\u200b",
    "\ufeff",
    " IN (",
    " EXISTS (",
    " VALUES ",
    "->",
    "::",
    ":x",
    "${env:HOME}",
    "0",
    "1L",
    " x ",
    " t ",
    " crm ",
    ".sales",
]


def mutated(text: str, moves: random.Random, times: int) -> str:
    for _ in range(times):
        at, other = sorted((moves.randrange(len(text) + 1), moves.randrange(len(text) + 1)))
        match moves.randrange(5):
            case 0:
                text = text[:at] + moves.choice(PIECES) + text[at:]
            case 1:
                text = text[:at] + text[min(other, at + 12) :]
            case 2:
                text = text[:at] + moves.choice(PIECES) + text[min(other, at + 6) :]
            case 3:
                text = text[:at] + text[at : at + 20] * 2 + text[at + 20 :]
            case _:
                words = re.split(r"(\W)", text)
                one, two = moves.randrange(len(words)), moves.randrange(len(words))
                words[one], words[two] = words[two], words[one]
                text = "".join(words)
    return text


def read_from(table: exp.Table, views: dict[Source, str]) -> str:
    """Return the view of a table that is a dataset, which must be in `views`; otherwise the table's name."""
    parts = [part.name for part in table.parts]
    return views[Source.parse(*parts)] if len(parts) == PARTS else table.name


@settings(max_examples=400)
@given(st.sampled_from(VALID), st.integers(0, 2**32), st.integers(1, 6))
def test_no_mutation_gets_a_table_through_that_is_not_a_dataset(text: str, seed: int, times: int):
    """An admitted text reads datasets by name.

    In the text for Spark every table is a view or an expression of the query.
    """
    changed = mutated(text, random.Random(seed), times)
    try:
        admitted = admit(changed, parameters={"x": 1} if ":x" in changed else None)
    except InvalidRequest:
        return
    assert all(re.fullmatch(r"[A-Za-z0-9][\w-]*(\.[A-Za-z0-9_][\w-]*){2}", str(one)) for one in admitted.references)
    views: dict[Source, str] = {source: f"v{number}" for number, source in enumerate(admitted.references)}
    again = admit(admitted.normalised, parameters=admitted.parameters)
    assert (again.normalised, again.references) == (admitted.normalised, admitted.references)
    names = {read_from(table, views) for table in admitted.tree.find_all(exp.Table)}
    expressions = {cte.alias for cte in admitted.tree.find_all(exp.CTE)}
    assert {name.lower() for name in names} <= {*views.values(), *(name.lower() for name in expressions)}
    sent = spark_text(admitted, views, common="w{}".format)
    assert not re.search(r"(FROM|JOIN) `(?!v\d+`|w\d+`)", sent)
    assert "${" not in sent
