"""Queries on Spark: the rewritten text has the query's meaning, values arrive unchanged, and no query exceeds its time limit."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Corruption, Dataset, InvalidRequest, Lake, Unavailable
from siltstone.errors import Reason
from siltstone.query.cancellation import CancelToken
from siltstone.query.gate.admit import admit, spark_text
from siltstone.query.gate.allowlist import FUNCTIONS
from tests.e2e.silt import silt
from tests.support.internals import store_of
from tests.support.people import NAME, create, key, write_people
from tests.support.refusals import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "VALUES (1, 'a', array(1, 2), true), (2, 'b\\'', array(3), false), (3, NULL, NULL, NULL) AS t(n, s, l, b)"
SLOW = "SELECT sum(a.x * b.x) FROM (SELECT explode(sequence(1, 5000)) x) a, (SELECT explode(sequence(1, 5000)) x) b"
"""Some seconds of work. It must end by itself, because a task inside such a join cannot be interrupted."""
TASKS_GONE_SECONDS = 60
"""Longest wait until tasks end: well above the time of a task for one batch, on a busy machine."""


@pytest.fixture
def lake(lake_path: Path, spark: "SparkSession") -> Iterator[Lake]:
    with Lake.open(lake_path, spark=spark) as opened:
        yield opened


@pytest.fixture
def dataset(lake: Lake, tmp_path: Path) -> Dataset:
    made = create(lake)
    made.ingest(write_people(tmp_path / "in.parquet", 5_000))
    return made


NASTY = [
    "SELECT 'it''s', 'a\\'b', \"c\"\"d\", 'e' 'f' \"g\", r'\\n', R\"\\\", 'x\\ty\\\\z'",
    "SELECT '\\u0041\\U00000042\\103', '\\%\\_\\d\\Z' AS x",
    "SELECT '-- no comment', '/* none */', '; DROP', '`', '\\0', 'größe', '\U0001f600', '\\ud83d\\ude00', '\\ud83d' AS half",
    "SELECT 1 -- a \\\n, 2\n, 3",
    "SELECT 1 /* a /* b */ , 2 */, 3",
    "SELECT /*+ BROADCAST(t) */ n FROM {rows}",
    "SELECT 1, 1L, 2S, 3Y, 1.5, 1.5BD, 1e3, 1.5e-3D, .5, 2F, 007, 12345678901, 123456789012345678901234567890",
    "SELECT - - 1, -n, +n, ~n, !b, NOT b, n - -1 AS m FROM {rows}",
    "SELECT 1 + 2 * 3 - 4 / 2 % 3, 7 DIV 2, 1 | 6 & 3 ^ 5, 'a' || (1 + 2) || 'b'",
    "SELECT NOT n = 1 AND b OR s IS NULL AS x, NOT n IN (1, 2) AS y, n NOT BETWEEN 1 AND 2 AS z FROM {rows}",
    "SELECT s LIKE 'b%', s NOT LIKE 'b!%' ESCAPE '!', s ILIKE 'A', s RLIKE '^b', NOT s NOT LIKE 'a' AS x FROM {rows}",
    "SELECT n <=> NULL, s IS DISTINCT FROM 'a' AS d, b IS NOT TRUE AS t, n == 1, n <> 2, n != 3 FROM {rows}",
    "SELECT CASE n WHEN 1 THEN 'x' WHEN 2 THEN 'y' END AS c, CASE WHEN b THEN 1 ELSE NULL END AS d FROM {rows}",
    "SELECT -1::STRING AS a, length(-1.50::STRING) AS b, -128::TINYINT AS c, -1L::STRING AS d",
    "SELECT - 1::STRING::INT AS e, -n::STRING AS f FROM {rows}",
    "SELECT 5 -1::INT AS a, -9223372036854775808::BIGINT AS b, concat('a', -1::STRING) AS c, - -1::INT AS d, -1.5BD::STRING AS e",
    "SELECT array(1, 2)[0] AS a, array(array(1), array(2, 3))[1][0] AS b",
    "SELECT dateadd(DAY, 1, DATE'2026-01-31') AS a, datediff(month, DATE'2026-01-01', DATE'2026-03-01') AS b",
    "SELECT dateadd(DATE'2026-01-01', 3) AS c",
    "SELECT n::STRING, CAST(n AS DECIMAL(10, 2)), TRY_CAST(s AS INT), CAST(l AS ARRAY<STRING>) FROM {rows}",
    "SELECT CAST(named_struct('a', 1) AS STRUCT<`a`: BIGINT>).a AS a, map('k', 1)['k'], l[0] FROM {rows} WHERE n < 3",
    "SELECT DATE '2020-02-29' AS d, TIMESTAMP '2020-01-01 00:00:00+02:00' AS t, TIMESTAMP_NTZ '2020-01-01 01:02:03.5' AS u",
    "SELECT DATE '2020-01-31' + INTERVAL 1 MONTH AS a, TIMESTAMP '2020-01-01' - INTERVAL '1 02:03:04' DAY TO SECOND AS b",
    "SELECT INTERVAL '1 day 2 hours' AS a, INTERVAL -3 HOURS AS b",
    "SELECT EXTRACT(YEAR FROM DATE '2020-05-06') AS y, TRIM(BOTH 'x' FROM 'xax'), TRIM(LEADING FROM ' a '), trim('x', 'xa')",
    "SELECT substring('abc' FROM 2 FOR 1), substring('abc', 2), overlay('abc' PLACING 'x' FROM 2), position('b' IN 'abc')",
    "SELECT transform(l, x -> x + n), filter(l, x -> x > 1), aggregate(l, 0, (a, x) -> a + x) FROM {rows}",
    "SELECT exists(l, x -> x > 2), forall(l, x -> x > 0), size(l), array_sort(l, (a, b) -> b - a) FROM {rows}",
    "SELECT count(*), count(DISTINCT n, b), sum(n) FILTER (WHERE b), first(s) IGNORE NULLS, max_by(s, n) FROM {rows}",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS p, listagg(s, ',') WITHIN GROUP (ORDER BY s DESC) AS g FROM {rows}",
    "SELECT n, row_number() OVER (ORDER BY n DESC) AS r, lag(n, 1, 0) OVER w AS p FROM {rows} WINDOW w AS (ORDER BY n)",
    "SELECT sum(n) OVER (ORDER BY n ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a FROM {rows}",
    "SELECT max(n) OVER (PARTITION BY b ORDER BY n RANGE UNBOUNDED PRECEDING) AS c FROM {rows}",
    "SELECT b, count(*) AS c, grouping(b) AS g FROM {rows} GROUP BY ROLLUP (b) ORDER BY g, b NULLS LAST",
    "SELECT b, n, count(*) AS c FROM {rows} GROUP BY GROUPING SETS ((b), (n, b), ()) ORDER BY ALL",
    "SELECT b, sum(n) AS c FROM {rows} GROUP BY ALL HAVING c > 1 ORDER BY b DESC NULLS FIRST LIMIT 2 OFFSET 1",
    "SELECT * FROM {rows} LATERAL VIEW OUTER explode(l) e AS x LATERAL VIEW posexplode(array(7)) AS p, y ORDER BY n, x",
    "SELECT n, explode(l) AS x FROM {rows} ORDER BY x",
    "SELECT stack(2, 1, 'a', 2, 'b') AS (k, v)",
    "SELECT t.n, u.x FROM {rows}, LATERAL (SELECT t.n + 1 AS x) u ORDER BY 1",
    "SELECT * EXCEPT (l, b) FROM {rows} ORDER BY n",
    "SELECT a.n, b.n FROM {rows} a LEFT JOIN (SELECT 2 AS n) b ON a.n = b.n ORDER BY a.n".replace(
        "{rows} a", "(SELECT * FROM {rows}) a"
    ),
    "SELECT * FROM (SELECT 1 x) a, (SELECT 2 y) b RIGHT JOIN (SELECT 3 z) c ON b.y = c.z",
    "SELECT * FROM (SELECT 1 x) a, (SELECT 2 y) b LEFT JOIN (SELECT 1 z) c ON a.x = c.z, (SELECT 4 w) d",
    "SELECT n = 1 IS NULL AS a, b = b IS NOT DISTINCT FROM b AS c, b IS NOT DISTINCT FROM n = 1 AS d FROM {rows}",
    "SELECT s IS NOT DISTINCT FROM NULL AS a, NOT s IS NOT DISTINCT FROM 'a' AS c, b IS DISTINCT FROM n = 1 AS d FROM {rows}",
    "SELECT n < 2 = b AS a, n = 1 = b AS c, (n = 2) IN (b) AS d, n BETWEEN 1 AND 2 AND b AS e FROM {rows}",
    "SELECT * FROM (SELECT 1 x) a NATURAL JOIN (SELECT 1 x, 2 y) b LEFT SEMI JOIN (SELECT 1 x) c USING (x)",
    "SELECT 1 AS a UNION SELECT 2 INTERSECT SELECT 2 EXCEPT SELECT 3 ORDER BY a",
    "(SELECT 1 AS a ORDER BY a LIMIT 1) UNION ALL (SELECT 2) ORDER BY 1 DESC",
    "WITH x AS (SELECT 1 a), y AS (WITH x AS (SELECT 2 a) SELECT * FROM x) SELECT * FROM x UNION ALL SELECT * FROM y ORDER BY a",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT sum(n) FROM r",
    "SELECT (SELECT max(n) FROM {rows}) AS m, EXISTS (SELECT 1 FROM {rows} WHERE n = 3) AS e, 2 IN (SELECT n FROM {rows}) AS i",
    "SELECT `select`, `a b`, `c``d` FROM VALUES (1, 2, 3) AS `from`(`select`, `a b`, `c``d`)",
    "SELECT date, timestamp, first, map FROM VALUES (1, 2, 3, 4) AS values_(date, timestamp, first, map)",
    "SELECT current_date = current_date(), current_timestamp() = current_timestamp, pi(), X'1F2e' AS h, TRUE, null",
    "FROM {rows} SELECT n WHERE n > 1 ORDER BY n",
    "SELECT n, s FROM {rows} QUALIFY row_number() OVER (ORDER BY n DESC) = 1",
    "SELECT b, count(*) AS c FROM {rows} GROUP BY b HAVING c > 0 QUALIFY rank() OVER (ORDER BY b) < 3 ORDER BY b LIMIT 5",
    "SELECT n, lag(n) OVER w AS p FROM {rows} QUALIFY p IS NULL WINDOW w AS (ORDER BY n)",
]


def test_the_rewritten_text_has_the_meaning_of_the_query_on_spark(spark: "SparkSession") -> None:
    """Our parser and Spark's may read a text differently; the rewritten text must have the same meaning."""
    different = []
    for text in NASTY:
        original = text.replace("{rows}", ROWS)
        sent = spark_text(admit(original), {}, common="with_{}".format)
        expected, found = spark.sql(original).toArrow(), spark.sql(sent).toArrow()
        rows = [[column.to_pylist() for column in table.columns] for table in (expected, found)]
        if found.schema.types != expected.schema.types or rows[0] != rows[1]:
            different.append((original, sent, *rows))
    assert different == []


def test_a_comma_is_a_cross_join_with_any_setting_of_the_session(spark: "SparkSession") -> None:
    original = "SELECT * FROM (SELECT 1 x) a, (SELECT 2 y) b RIGHT JOIN (SELECT 3 z) c ON b.y = c.z"
    sent = spark_text(admit(original), {}, common="with_{}".format)
    spark.conf.set("spark.sql.ansi.relationPrecedence", "true")
    try:
        assert spark.sql(sent).toArrow().to_pylist() == [{"x": None, "y": None, "z": 3}]
    finally:
        spark.conf.unset("spark.sql.ansi.relationPrecedence")
    assert spark.sql(original).toArrow() == spark.sql(sent).toArrow()


def test_every_function_of_the_list_is_one_of_spark(spark: "SparkSession") -> None:
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert known >= FUNCTIONS


VALUES = [
    (None, "void"),
    (True, "boolean"),
    (7, "int"),
    (-7, "int"),
    (2**40, "bigint"),
    (-(2**63), "bigint"),
    (0.1, "double"),
    (-1e300, "double"),
    (float("inf"), "double"),
    ("it's ${env:HOME} \\ \n \x00 \" ` -- /* größe \U0001f600", "string"),
    ("", "string"),
    (b"\x00\xff", "binary"),
    (Decimal("-12.50"), "decimal(4,2)"),
    (Decimal("1E+3"), "decimal(4,0)"),
    (date(1582, 10, 4), "date"),
    (datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "timestamp"),
    (datetime(2020, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))), "timestamp"),
    (datetime(2020, 1, 2, 3, 4, 5, 6), "timestamp_ntz"),  # noqa: DTZ001
    ([1, 2], "array<int>"),
    (["it's", "${x}"], "array<string>"),
]


def test_values_arrive_as_they_are(lake: Lake) -> None:
    names = {f"v{number}": value for number, (value, _) in enumerate(VALUES)}
    columns = ", ".join(f":{name} AS {name}, typeof(:{name})" for name in names)
    (row,) = lake.sql(f"SELECT {columns}", params=names, engine="spark").rows
    assert list(zip(row[::2], row[1::2], strict=True)) == VALUES


@pytest.mark.usefixtures("dataset")
def test_a_parameter_filters_and_limits(lake: Lake) -> None:
    query = "SELECT n FROM people WHERE n >= :least AND array_contains(:ids, id) ORDER BY n LIMIT :most"
    given = {"least": 3, "ids": [key(number) for number in range(10)], "most": 2}
    assert lake.sql(query, params=given, catalog="crm", schema="sales").rows == [(3,), (4,)]


@pytest.mark.usefixtures("dataset")
def test_spark_names_unknown_or_ambiguous_columns(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="nope"):
        lake.sql(f"SELECT nope FROM {NAME}")
    with pytest.raises(InvalidRequest, match="ambiguous"):
        lake.sql(f"SELECT n FROM {NAME} a JOIN {NAME} b ON a.id = b.id")
    with pytest.raises(InvalidRequest, match="Recursion level limit"):
        lake.sql("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT * FROM r")


def test_a_query_that_takes_too_long_or_is_cancelled_ends(lake: Lake, spark: "SparkSession") -> None:
    began = time.monotonic()
    with refused(Unavailable, Reason.TIME_LIMIT, "0.1 s", "query_seconds"):
        lake.sql(SLOW, timeout=0.1)
    cancellation = CancelToken()
    timer = Timer(0.1, cancellation.cancel)
    timer.start()
    with refused(Unavailable, Reason.CANCELLED):
        lake.stream_sql(SLOW, cancellation=cancellation).read_all()
    timer.join()
    assert time.monotonic() - began < 60
    assert [view.name for view in spark.catalog.listTables() if view.name.startswith("silt_")] == []
    assert lake.sql("SELECT 1").rows == [(1,)]


def test_the_caller_gets_the_time_limit_while_spark_works_out_a_constant(lake: Lake) -> None:
    """Spark computes it during planning, and ignores interrupts until it has the result."""
    for ask in (
        lambda text: lake.sql(text, timeout=0.5, query_id="constant"),
        lambda text: lake.explain_sql(text, timeout=0.5, engine="spark"),
        lambda text: lake.stream_sql(text, timeout=0.5).read_all(),
    ):
        assert any(_ends_before_spark(lake, ask, letters) for letters in (16_000, 24_000, 32_000))


def _ends_before_spark(lake: Lake, ask: Callable[[str], object], letters: int) -> bool:
    """Return whether the caller got its error while Spark still computed. On a busy machine Spark may be done."""
    with refused(Unavailable, Reason.TIME_LIMIT, "0.5 s"):
        ask(f"SELECT levenshtein(repeat('a', {letters}), repeat('b', {letters})) AS n")
    is_running = len(lake.queries.running()) == 1
    until = time.monotonic() + TASKS_GONE_SECONDS
    while lake.queries.running():
        assert time.monotonic() < until
        time.sleep(0.1)
    return is_running


@pytest.mark.usefixtures("dataset")
def test_a_join_that_yields_nothing_ends_soon_after_its_time(lake: Lake, spark: "SparkSession") -> None:
    """Its task processes half a billion pairs of rows before it checks for an interrupt."""
    pairs = f"SELECT count(*) FROM {NAME} a JOIN (SELECT explode(sequence(1, 400000)) x) b ON a.n * b.x = -1"
    with refused(Unavailable, Reason.TIME_LIMIT, "2 s"):
        lake.sql(pairs, timeout=2, engine="spark")
    assert lake.sql(f"SELECT count(*) FROM {NAME}", timeout=30, engine="spark").rows == [(5_000,)]
    ended, stages = time.monotonic() + TASKS_GONE_SECONDS, spark.sparkContext.statusTracker()
    while busy := [one for one in map(stages.getStageInfo, range(2_000)) if one and one.numActiveTasks]:
        assert time.monotonic() < ended, busy
        time.sleep(0.2)


@pytest.mark.usefixtures("dataset")
def test_a_product_that_could_not_be_stopped_is_refused_before_it_starts(lake: Lake) -> None:
    product = f"SELECT count(*) FROM {NAME} a, {NAME} b, {NAME} c WHERE a.n + b.n + c.n = -1"
    with refused(InvalidRequest, None, "a, b and c", "2.6e10 row pairs"):
        lake.sql(product, engine="spark")
    with refused(InvalidRequest, None, "a, b and c"):
        lake.stream_sql(product)


@pytest.mark.usefixtures("dataset")
def test_a_stream_brings_all_rows_in_order_and_in_pieces(lake: Lake, spark: "SparkSession") -> None:
    query = f"SELECT n, city, array(n) AS l FROM {NAME} WHERE n >= :least ORDER BY n DESC"
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        batches = list(lake.stream_sql(query, params={"least": 100}))
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before or "10000")
    assert [number for batch in batches for number in batch.column("n").to_pylist()] == list(range(4_999, 99, -1))
    assert max(batch.num_rows for batch in batches) <= 1_000
    whole = lake.sql(query, params={"least": 100}, max_rows=100_000, engine="spark").to_arrow()
    assert batches[0].schema == whole.schema
    assert lake.stream_sql(f"SELECT n FROM {NAME} WHERE n < 0").read_all().num_rows == 0
    assert [view.name for view in spark.catalog.listTables() if view.name.startswith("silt_")] == []


def test_a_long_stream_stays_small_in_memory_and_goes_into_a_file(lake: Lake, lake_path: Path, tmp_path: Path) -> None:
    many = "SELECT x AS n, concat('name ', x) AS s FROM (SELECT explode(sequence(1, 600000)) x)"
    rows, held, before = 0, 0, pa.total_allocated_bytes()
    for batch in lake.stream_sql(many):
        rows, held = rows + batch.num_rows, max(held, pa.total_allocated_bytes() - before)
    assert (rows, held < 8 * 1024 * 1024) == (600_000, True)
    out = tmp_path / "rows.parquet"
    done = silt("--lake", lake_path, "--json", "sql", many, "--out", out)
    assert (done.code, done.data["row_count"], done.data["truncated"]) == (0, 600_000, False)
    written = pq.ParquetFile(out)
    assert written.metadata.num_rows == 600_000
    assert written.num_row_groups == 5
    late = silt("--lake", lake_path, "sql", f"{many} WHERE assert_true(x < 300000) IS NULL", "--out", out)
    assert (late.code, pq.read_metadata(out).num_rows) == (2, 600_000)
    assert list(tmp_path.glob(".rows*")) == []


def test_standard_output_gets_all_rows_as_csv_and_json(lake_path: Path, lake: Lake) -> None:
    many = "SELECT explode(sequence(1, 118832)) AS n"
    csv = silt("--lake", lake_path, "sql", many, "--csv")
    assert (csv.code, csv.out) == (0, "n\n" + "".join(f"{n}\n" for n in range(1, 118_833)))
    found = silt("--lake", lake_path, "--json", "sql", many)
    assert (found.data["row_count"], found.data["truncated"], found.data["engine"]) == (118_832, False, "spark")
    assert found.data["rows"] == [[n] for n in range(1, 118_833)]
    with pytest.raises(InvalidRequest, match="1,000"):
        lake.sql(many).to_pandas()
    assert lake.stream_sql(many).read_all().num_rows == 118_832


@pytest.mark.usefixtures("dataset")
def test_a_stream_raises_the_error_of_its_query(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="nope"):
        lake.stream_sql(f"SELECT nope FROM {NAME}")
    cancellation = CancelToken()
    reader = lake.stream_sql(f"SELECT n FROM {NAME}", cancellation=cancellation)
    cancellation.cancel()
    with refused(Unavailable, Reason.CANCELLED):
        reader.read_all()


def test_a_live_file_that_is_lost_is_named(lake: Lake, dataset: Dataset) -> None:
    [lost] = dataset.snapshot().base.files
    (store_of(dataset).base.path / lost.path).unlink()
    text = f"SELECT max(id) FROM {NAME}"
    with refused(Corruption, Reason.MISSING_FILE, lost.path):
        lake.sql(text, engine="spark")
    with refused(Corruption, Reason.MISSING_FILE, lost.path):
        lake.stream_sql(text).read_all()


def test_a_value_with_the_text_of_a_memory_error_is_an_error_of_the_query(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="'java"):
        lake.sql("SELECT CAST('java.lang.OutOfMemoryError' AS INT)", engine="spark")


SAYS = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"}


@pytest.mark.parametrize("option", SAYS)
def test_a_query_means_the_same_whatever_the_session_is_set_to(lake: Lake, spark: "SparkSession", option: str) -> None:
    people = lake.create("a.b.times", "id INT NOT NULL, u TIMESTAMP", key="id")
    people.upsert([{"id": 2**31 - 1, "u": "2026-03-29T01:30:00Z"}])
    text = "SELECT hour(u) AS h, cast(u AS DATE) AS d FROM a.b.times WHERE u > '2026-03-29 00:00:00'"
    before = spark.conf.get(option)
    spark.conf.set(option, SAYS[option])
    try:
        hot, on_spark = (lake.sql(text, engine=engine).rows for engine in ("hot", "spark"))
        assert hot == on_spark == [(1, date(2026, 3, 29))]
        with pytest.raises(InvalidRequest, match="overflow"):
            lake.sql("SELECT id + 1 AS x FROM a.b.times", engine="spark")
        assert lake.stream_sql(text).read_all().num_rows == 1
        assert spark.conf.get(option) == SAYS[option]
    finally:
        spark.conf.set(option, before or "")


def test_explain_of_a_query_that_cannot_be_planned_has_the_reason(dataset: Dataset, lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="nmae"):
        lake.explain_sql(f"SELECT nmae FROM {dataset.name}", engine="spark")


SUBQUERIES = [
    "SELECT *, EXISTS (SELECT 1 FROM {u} u WHERE u.c = t.c AND u.id > 3) AS x FROM {t} t",
    "SELECT id, (SELECT max(u.v) FROM {u} u WHERE u.c = t.c) AS x, v IN (SELECT v FROM {u} u WHERE u.c = t.c) AS y FROM {t} t",
    "SELECT CASE WHEN NOT EXISTS (SELECT * FROM {t} u WHERE u.c = t.v) THEN 1 ELSE 0 END AS x FROM {t} t",
]
"""Correlated subqueries as values: an optimiser rule of Spark fails on them over a union."""


@pytest.mark.parametrize("kind", ["keyed", "log"])
def test_correlated_subqueries_as_values_are_answered_over_merged_rows(lake: Lake, spark: "SparkSession", kind: str):
    columns = "id INT NOT NULL, c INT, v BIGINT, s STRING, at TIMESTAMP"
    at = "2026-01-01T00:00:00Z"
    rows = [{"id": i, "c": i % 4, "v": i * 2, "s": f"x{i % 3}", "at": at} for i in range(12)]
    rules: dict[str, str] = {"key": "id"} if kind == "keyed" else {"time": "at", "subject": "s"}
    made = [lake.create(f"lab.d.{name}", columns, **rules) for name in ("t", "u")]
    for one in made:
        (one.upsert if kind == "keyed" else one.append)(rows)
    views = {"t": "plain_t", "u": "plain_u"}

    def check() -> None:
        for one, view in zip(made, views.values(), strict=True):
            spark.createDataFrame(one.to_arrow()).createOrReplaceTempView(view)
        for text in SUBQUERIES:
            found = lake.sql(text.format(t="lab.d.t", u="lab.d.u"), engine="spark").rows
            expected = [tuple(row) for row in spark.sql(text.format(**views)).drop("at").collect()]
            assert sorted(str(row[:4] + row[5:] if len(row) > 5 else row) for row in found) == sorted(
                map(str, expected)
            )

    check()
    made[0].compact()
    more = [{"id": 20 + i, "c": i, "v": i, "s": "y", "at": at} for i in range(4)]
    (made[0].upsert if kind == "keyed" else made[0].append)(more)
    made[0].tombstone([3] if kind == "keyed" else ["x1"])
    check()


def test_a_limit_below_a_correlated_subquery_takes_the_first_rows_in_order(lake: Lake) -> None:
    rows = [{"id": i, "c": i % 4, "v": (7 * i) % 24} for i in range(24)]
    lake.create("lab.d.limited", "id INT NOT NULL, c INT, v BIGINT", key="id").upsert(rows)
    case = "CASE WHEN c > 1 THEN (SELECT max(u.v) FROM lab.d.limited u WHERE u.id = t.v) ELSE -1 END"
    text = f"SELECT sum(nullif({case}, c)) AS x FROM (SELECT * FROM lab.d.limited ORDER BY v, id LIMIT 5) t"
    first = sorted(rows, key=lambda row: (row["v"], row["id"]))[:5]
    by_id = {row["id"]: row["v"] for row in rows}
    values = [(by_id[row["v"]] if row["c"] > 1 else -1, row["c"]) for row in first]
    expected = sum(value for value, other in values if value != other)
    for engine in ("hot", "spark"):
        assert lake.sql(text, engine=engine).rows == [(expected,)], engine
