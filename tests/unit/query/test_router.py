"""The router without Spark: the chosen engine and its reason, cached answers, limits, pages, plans."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from siltstone import Lake
from siltstone.config import Settings
from siltstone.errors import Conflict, InvalidRequest, NotFound, Reason, Unavailable
from siltstone.model.commit import Commit, CommitKind
from siltstone.query import cancellation, hot_executor, result_cache
from siltstone.query.hot import fill as fill_module
from siltstone.query.hot.duckdb_types import check_values
from siltstone.query.result import QueryResult, TruncatedWarning
from siltstone.spark.lake_sessions import LakeSessions
from tests.support.folds import fold_by_arrow
from tests.support.internals import parts_of, replace_session, residents_of, store_of
from tests.support.refusals import refused

PEOPLE = "crm.sales.people"
GROUPED = f"SELECT n, count(*) AS c FROM {PEOPLE} GROUP BY n ORDER BY n"
ENDLESS = (
    f"SELECT count(*) AS c FROM {PEOPLE} a, {PEOPLE} b, {PEOPLE} c, {PEOPLE} d WHERE a.id + b.id + c.id + d.id = 5"
)


class NoSpark(Exception):  # noqa: N818
    """The router used Spark."""


@pytest.fixture
def lake(lake_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake of one small dataset, in which Spark must not start."""

    def refuse(_sessions: LakeSessions, _server: object) -> None:
        raise NoSpark

    replace_session(monkeypatch, refuse)
    with Lake.open(lake_path, settings=Settings(durable=False, hot_cache_mb=32, hot_query_mb=64)) as opened:
        people = opened.create(
            PEOPLE, "id BIGINT NOT NULL, n INT, name STRING, amount DECIMAL(10,2), x DOUBLE", key="id"
        )
        people.upsert([{"id": at, "n": at % 3, "name": f"p{at}", "amount": at, "x": at / 2} for at in range(1000)])
        yield opened


def test_a_small_dataset_is_answered_hot_without_spark(lake: Lake):
    result = lake.sql(GROUPED)
    assert (result.engine, result.cached, result.truncated) == ("hot", False, False)
    assert result.columns == ["n", "c"]
    assert result.rows == [(0, 334), (1, 333), (2, 333)]
    assert result.to_arrow().schema.types == [pa.int32(), pa.int64()]
    assert "memory" in result.reason
    assert len(result.to_pandas()) == 3


def test_a_repeated_query_is_cached_until_a_write(lake: Lake):
    assert not lake.sql(GROUPED).cached
    assert lake.sql(GROUPED).cached
    assert lake.sql(GROUPED.replace("SELECT", "select  ")).cached
    lake.dataset(PEOPLE).upsert([{"id": 0, "n": 2}])
    fresh = lake.sql(GROUPED)
    assert not fresh.cached
    assert fresh.rows == [(0, 333), (1, 333), (2, 334)]


def test_a_known_text_without_a_cached_answer_sees_every_write(lake_path: Path, lake: Lake):
    with Lake.open(lake_path, settings=Settings(durable=False, result_cache_mb=0)) as other:
        for number in range(4):
            lake.dataset(PEOPLE).upsert([{"id": number, "n": 7}])
            for _ in range(2):
                found = other.sql(f"SELECT count(*) AS c FROM {PEOPLE} WHERE n = 7")
                assert (found.rows, found.cached) == ([(number + 1,)], False)


def test_first_queries_of_several_threads_share_the_router_and_the_cache(lake: Lake):
    start = threading.Barrier(8)
    found: list[object] = []

    def first() -> None:
        start.wait()
        found.append((lake.queries, lake.hot))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {(lake.queries, lake.hot)}


def test_other_values_rows_and_columns_are_other_cache_keys(lake: Lake):
    text = f"SELECT id FROM {PEOPLE} WHERE n = :n ORDER BY id"
    assert lake.sql(text, params={"n": 1}).rows[0] == (1,)
    assert lake.sql(text, params={"n": 2}).rows[0] == (2,)
    assert lake.sql(text, params={"n": 1}).cached
    assert lake.sql(text, params={"n": 1}, max_rows=5).row_count == 5
    assert lake.sql(f"SELECT 1 AS x FROM {PEOPLE} LIMIT 1").rows == [(1,)]
    assert lake.sql(f"SELECT true AS x FROM {PEOPLE} LIMIT 1").rows == [(True,)]


def test_truncation_is_reported(lake: Lake):
    result = lake.sql(f"SELECT id FROM {PEOPLE}", max_rows=10)
    assert (result.row_count, result.truncated) == (10, True)
    assert not lake.sql(f"SELECT id FROM {PEOPLE}", max_rows=1000).truncated
    assert lake.sql(f"SELECT id FROM {PEOPLE} LIMIT 10", max_rows=10).truncated is False
    for count in (0, 100_001, 10**6000):
        with refused(InvalidRequest, None, "1", "100,000"):
            lake.sql(GROUPED, max_rows=count)


def test_a_frame_of_rows_that_the_setting_has_cut_is_refused(lake_path: Path, lake: Lake):
    text = f"SELECT id FROM {PEOPLE}"
    with Lake.open(lake_path, settings=Settings(durable=False, max_rows=10)) as short:
        for _ in range(2):  # also if the answer is the previous one
            result = short.sql(text)
            assert (result.row_count, result.truncated, result.limit_given) == (10, True, False)
            for taken in (result.to_arrow, result.to_pandas, result.to_polars):
                with refused(InvalidRequest, None, "10 rows", "max_rows=", "stream_sql"):
                    taken()
                assert len(taken(allow_truncated=True)) == 10
            with pytest.warns(TruncatedWarning, match="max_rows"):
                assert len(result.rows) == 10
        assert short.queries.page(short.sql(text).query_id, 1, size=5).to_arrow().num_rows == 5
        assert short.sql(text, max_rows=10).to_arrow().num_rows == 10
        assert len(short.sql(text, max_rows=10).rows) == 10
        assert short.sql(f"{text} WHERE id < 10").to_arrow().num_rows == 10
    assert lake.sql(text).to_arrow().num_rows == 1000


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"SELECT stddev(x) AS s FROM {PEOPLE}", ("STDDEV",)),
        (f"SELECT percentile(x, 0.5) AS p FROM {PEOPLE}", ("PERCENTILE",)),
        (f"SELECT collect_list(x) AS l FROM {PEOPLE}", ("COLLECT_LIST",)),
        (f"SELECT id + 1 FROM {PEOPLE}", ()),
        (f"SELECT count(*) AS n FROM crm.sales.__raw__people, {PEOPLE}", ()),
        (f"SELECT id FROM {PEOPLE} WHERE name = 'it\\0s'", ()),
        ("SELECT rand() AS one", ("RAND",)),
        (f"SELECT id / n AS x FROM {PEOPLE}", ()),
    ],
)
def test_an_impossible_hot_query_has_a_reason_and_auto_uses_spark(lake: Lake, text: str, facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts):
        lake.sql(text, engine="hot")
    with pytest.raises(NoSpark):
        lake.sql(text)


def test_a_query_that_reads_no_dataset_is_answered_from_memory(lake: Lake):
    found = lake.sql("SELECT 1, 'a b', true, 2 AS two")
    assert (found.columns, found.rows) == (["1", "a b", "true", "two"], [(1, "a b", True, 2)])
    assert (found.engine, bool(found.reason)) == ("hot", True)
    assert lake.sql("SELECT sum(id) AS n FROM range(5)").rows == [(10,)]
    assert lake.explain_sql("SELECT 1").engine == "hot"


def test_raw_rows_of_a_small_dataset_are_read_at_once_and_never_stale(lake: Lake):
    text = "SELECT count(*) AS n, max(name) AS name FROM crm.sales.__raw__people WHERE id < 2"
    people = lake.dataset(PEOPLE)
    people.tombstone([1])
    assert lake.sql(f"SELECT count(*) AS n FROM {PEOPLE} WHERE id < 2").rows == [(1,)]
    assert lake.sql(text).rows == [(2, "p1")]
    people.upsert([{"id": 1, "n": 1, "name": "z", "amount": 1, "x": 1.0}])
    found = lake.sql(text)
    assert (found.engine, found.rows) == ("hot", [(2, "z")])
    assert lake.explain_sql(text).engine == "hot"


def test_raw_rows_of_a_large_dataset_are_left_to_spark(lake: Lake, lake_path: Path):
    del lake
    with Lake.open(lake_path, settings=Settings(durable=False, hot_at_once_rows=999)) as small:
        with pytest.raises(InvalidRequest):
            small.sql("SELECT id FROM crm.sales.__raw__people", engine="hot")
        with pytest.raises(NoSpark):
            small.sql("SELECT id FROM crm.sales.__raw__people")


@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"SELECT nmae FROM {PEOPLE}", ("nmae", "name")),
        (f"SELECT stddev(amuont) AS s FROM {PEOPLE}", ("amount",)),
        (f"INSERT INTO {PEOPLE} VALUES (1)", ("Dataset.upsert",)),
        ("SELECT * FROM crm.sales.peopel", ("crm.sales.peopel",)),
    ],
)
def test_a_misspelt_or_refused_query_never_starts_spark(lake: Lake, text: str, facts: tuple[str, ...], engine: str):
    for ask in (lake.sql, lake.explain_sql):
        with refused((InvalidRequest, NotFound), None, *facts):
            ask(text, engine=engine)


def test_explain_starts_spark_only_on_request(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("siltstone.spark.session.is_running", lambda: False)  # other tests may have one
    found = lake.explain_sql(f"SELECT stddev(x) AS s FROM {PEOPLE}")
    assert found.engine == "spark"
    assert "STDDEV" in found.reason
    assert "SELECT stddev(`x`) AS `s`" in found.plan
    with pytest.raises(NoSpark):
        lake.explain_sql(GROUPED, engine="spark")


def test_spark_can_be_requested_and_an_unknown_engine_is_refused(lake: Lake):
    with pytest.raises(NoSpark):
        lake.sql(GROUPED, engine="spark")
    with refused(InvalidRequest, None, "'duck'", "engine"):
        lake.sql(GROUPED, engine="duck")


def test_a_large_dataset_is_filled_only_if_hot_is_requested(lake_path: Path, lake: Lake):
    del lake
    settings = Settings(durable=False, hot_at_once_rows=10)
    with Lake.open(lake_path, settings=settings, long_running=False) as other:
        with pytest.raises(NoSpark):
            other.sql(GROUPED)
        assert other.sql(GROUPED, engine="hot").rows[0] == (0, 334)
        assert other.sql(GROUPED).engine == "hot"


@pytest.fixture
def others_fill(lake: Lake) -> Iterator[None]:
    """Another query holds the fill lock until the test ends."""
    begun, ended = threading.Event(), threading.Event()

    def fill() -> None:
        with residents_of(lake.hot).filling:
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=fill)
    thread.start()
    begun.wait()
    yield
    ended.set()
    thread.join()


def test_a_lake_that_is_closed_ends_its_queries(lake_path: Path, lake: Lake):
    del lake
    endless = f"SELECT sum(a.id * b.id * c.id) AS x FROM {PEOPLE} a, {PEOPLE} b, {PEOPLE} c"
    with Lake.open(lake_path, settings=Settings(durable=False)) as other, ThreadPoolExecutor(1) as pool:
        other.sql(GROUPED)
        submitted = pool.submit(other.sql, endless, engine="hot", query_id="endless")
        while not other.queries.running():
            time.sleep(0.01)
        time.sleep(0.2)  # DuckDB is running the query
        other.close()
        with refused(Unavailable, Reason.CANCELLED):
            submitted.result(10)


@pytest.mark.usefixtures("others_fill")
def test_auto_does_not_wait_long_for_fills_of_other_queries(lake: Lake):
    with pytest.raises(NoSpark):
        lake.sql(GROUPED, timeout=30)
    assert lake.queries.running() == []


@pytest.mark.usefixtures("others_fill")
def test_a_query_that_waits_for_hot_ends_at_its_time_limit_or_a_cancellation(lake: Lake):
    with refused(Unavailable, Reason.TIME_LIMIT, "0.3 s"):
        lake.sql(GROUPED, engine="hot", timeout=0.3)
    canceller = threading.Thread(target=cancel_when_listed, args=(lake, "waits"))
    canceller.start()
    with refused(Unavailable, Reason.CANCELLED):
        lake.sql(GROUPED, engine="hot", query_id="waits")
    canceller.join()


def test_a_fill_for_hot_ends_with_its_time(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    def slow(piece: pa.Table) -> None:
        threading.Event().wait(0.2)
        check_values(piece)

    fold_by_arrow(lake.dataset(PEOPLE))
    monkeypatch.setattr(fill_module, "check_values", slow)
    with refused(Unavailable, Reason.TIME_LIMIT, "0.1 s"):
        lake.sql(GROUPED, engine="hot", timeout=0.1)
    assert not lake.hot.decide(PEOPLE).resident
    assert lake.sql(GROUPED, engine="hot").row_count == 3


def test_a_query_that_spark_can_answer_evicts_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    lake.sql(GROUPED)
    lake.create("crm.sales.more", "id BIGINT NOT NULL", key="id").upsert([{"id": 1}])
    monkeypatch.setattr(fill_module, "BLOCK_BYTES", lake.hot.stats().budget_bytes - 100_000)
    residents_of(lake.hot).slot("crm.sales.more").fill_scheduled = True  # in the background, after another answer
    with pytest.raises(NoSpark):
        lake.sql("SELECT id FROM crm.sales.more")
    assert lake.hot.decide(PEOPLE).resident
    assert lake.sql("SELECT id FROM crm.sales.more", engine="hot").rows == [(1,)]


def test_unknown_datasets_are_refused_without_spark(lake: Lake):
    with pytest.raises(NotFound, match="nobody"):
        lake.sql("SELECT * FROM crm.sales.nobody")


def test_a_time_limit_ends_a_query_and_the_process_continues(lake: Lake):
    with refused(Unavailable, Reason.TIME_LIMIT, "0.3 s"):
        lake.sql(ENDLESS, timeout=0.3)
    assert lake.sql(GROUPED).engine == "hot"


REACHED = threading.Event()
"""Set once a query of `stuck` waits for Spark."""


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The start of Spark hangs until the event is set."""
    goes_on = threading.Event()
    REACHED.clear()

    def wait(_sessions: LakeSessions, _server: object) -> None:
        REACHED.set()
        goes_on.wait(60)
        raise NoSpark

    replace_session(monkeypatch, wait)
    yield goes_on
    goes_on.set()


def cancel_when_listed(lake: Lake, query_id: str) -> None:
    """Cancel a query as soon as it runs."""
    until = time.monotonic() + 30
    while query_id not in lake.queries.running() and time.monotonic() < until:
        time.sleep(0.01)
    lake.queries.cancel(query_id)


def none_runs(lake: Lake) -> bool:
    """Wait until no query runs: its caller may return before it. False if one still runs after 30 seconds."""
    until = time.monotonic() + 30
    while lake.queries.running() and time.monotonic() < until:
        time.sleep(0.01)
    return lake.queries.running() == []


def cancel_when_reached(lake: Lake, query_id: str) -> None:
    """Cancel a query as soon as it waits for Spark."""
    REACHED.wait(30)
    lake.queries.cancel(query_id)


BESIDE = f"SELECT stddev(x) AS s FROM {PEOPLE}"
"""A query that the hot engine does not answer."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda lake: lake.sql(BESIDE, timeout=600, query_id="stuck"),
        lambda lake: lake.explain_sql(BESIDE, timeout=600, engine="spark"),
        lambda lake: lake.stream_sql(BESIDE, timeout=600),
    ],
    ids=["sql", "explain", "stream"],
)
def test_the_time_limit_covers_the_start_of_spark(
    lake: Lake, stuck: threading.Event, ask: Callable[[Lake], object], monkeypatch: pytest.MonkeyPatch
):
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(cancellation, "time", clock)

    def expire() -> None:
        REACHED.wait(30)
        passed[0] = 600.0

    expiry = threading.Thread(target=expire)
    expiry.start()
    with refused(Unavailable, Reason.TIME_LIMIT, "600 s", "timeout=", "--timeout", "query_seconds"):
        ask(lake)
    expiry.join()
    assert len(lake.queries.running()) == 1  # the caller did not wait for Spark
    stuck.set()
    assert none_runs(lake)


@pytest.mark.parametrize("step", ["admit", "hot_executor.translate"])
def test_the_time_limit_covers_reading_and_translating(lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str):
    goes_on = threading.Event()
    monkeypatch.setattr(
        f"siltstone.query.{'router.admit' if step == 'admit' else step}", lambda *_, **__: goes_on.wait(60)
    )
    with refused(Unavailable, Reason.TIME_LIMIT, "0.3 s"):
        lake.sql(GROUPED, timeout=0.3)
    with refused(Unavailable, Reason.TIME_LIMIT, "0.3 s"):
        lake.explain_sql(GROUPED, timeout=0.3)
    goes_on.set()


def test_a_cancelled_query_is_not_waited_for_if_its_engine_does_not_stop(lake: Lake, stuck: threading.Event):
    canceller = threading.Thread(target=cancel_when_reached, args=(lake, "mine"))
    canceller.start()
    with refused(Unavailable, Reason.CANCELLED):
        lake.sql(BESIDE, query_id="mine", timeout=0)
    canceller.join()
    assert lake.queries.running() == ["mine"]
    stuck.set()


def test_a_query_is_cancelled_by_its_id(lake: Lake):
    lake.sql(GROUPED)
    canceller = threading.Thread(target=cancel_when_listed, args=(lake, "mine"))
    canceller.start()
    with refused(Unavailable, Reason.CANCELLED):
        lake.sql(ENDLESS, query_id="mine")
    canceller.join()
    assert none_runs(lake)
    with pytest.raises(NotFound, match="mine"):
        lake.queries.cancel("mine")


def test_an_id_that_runs_is_not_taken_twice(lake: Lake):
    lake.sql(GROUPED)

    def endless() -> None:
        with pytest.raises(Unavailable):
            lake.sql(ENDLESS, query_id="one")

    running = threading.Thread(target=endless)
    running.start()
    while "one" not in lake.queries.running():
        pass
    with pytest.raises(Conflict, match="one"):
        lake.sql(GROUPED, query_id="one")
    lake.queries.cancel("one")
    running.join()


def test_a_join_that_explodes_reaches_the_limit_of_memory_and_the_process_continues(lake: Lake):
    text = f"SELECT a.name AS p, b.name AS q, c.name AS r, count(*) AS n FROM {PEOPLE} a, {PEOPLE} b, {PEOPLE} c GROUP BY 1, 2, 3"
    with pytest.raises((InvalidRequest, Unavailable)) as found:
        lake.sql(text, engine="hot", timeout=20)
    assert found.value.reason in {Reason.MEMORY, Reason.TIME_LIMIT}, found.value
    assert lake.sql(GROUPED).engine == "hot"


def test_the_last_answers_are_cached_by_page(lake: Lake):
    text = f"SELECT id FROM {PEOPLE} ORDER BY id"
    result = lake.sql(text, query_id="paged")
    assert result.query_id == "paged"
    second = lake.queries.page("paged", 2, size=100)
    assert (second.rows[0], second.row_count, second.truncated) == ((100,), 100, True)
    assert lake.queries.page("paged", 10, size=100).truncated is False
    assert lake.queries.page("paged", 11, size=100).row_count == 0
    for at in range(50):
        lake.sql(f"SELECT {at} AS x FROM {PEOPLE} LIMIT 1")
    with pytest.raises(NotFound, match="50"):
        lake.queries.page("paged", 1)
    with pytest.raises(InvalidRequest, match="1"):
        lake.queries.page("paged", 0)


def test_a_plan_names_the_engine_and_no_path(lake: Lake, lake_path: Path):
    lake.sql(GROUPED)
    found = lake.explain_sql(GROUPED)
    assert found.engine == "hot"
    assert found.plan
    assert str(lake_path) not in found.plan
    assert PEOPLE in found.plan
    assert "hot_" not in found.plan
    assert "Resident" in found.datasets[PEOPLE]


@pytest.mark.parametrize("given", [{"timeout": -1}, {"timeout": math.nan}, {"timeout": math.inf}, {"timeout": "5"}])
def test_an_invalid_time_limit_is_refused(lake: Lake, given: dict[str, Any]):
    with pytest.raises(InvalidRequest):
        lake.sql(GROUPED, **given)
    with pytest.raises(InvalidRequest):
        lake.stream_sql(GROUPED, **given)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"max_rows": "5"}, ("1", "100,000")),
        ({"max_rows": 2.5}, ("1", "100,000")),
        ({"max_rows": True}, ("1", "100,000")),
        ({"query_id": 5}, ()),
        ({"query_id": "x" * 129}, ()),
        ({"query_id": "a\nb"}, ()),
    ],
)
def test_arguments_of_other_classes_are_refused_by_name(lake: Lake, given: dict[str, Any], facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts):
        lake.sql(GROUPED, **given)


@pytest.mark.parametrize(("number", "size"), [(1.5, 10), ("1", 10), (1, "10"), (0, 10), (1, 10_001)])
def test_an_invalid_page_is_refused(lake: Lake, number: Any, size: Any):  # noqa: ANN401
    lake.sql(GROUPED, query_id="paged")
    with pytest.raises(InvalidRequest, match="1"):
        lake.queries.page("paged", number, size=size)


def test_paged_results_have_a_memory_limit_and_the_newest_is_always_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(result_cache, "PAGED_RESULTS_BYTES", 1)
    for name in ("first", "second"):
        lake.sql(GROUPED, query_id=name)
    assert lake.queries.page("second", 1).row_count == 3
    with pytest.raises(NotFound):
        lake.queries.page("first", 1)


def test_a_query_of_a_closed_lake_is_unavailable(lake: Lake):
    lake.sql(GROUPED)
    lake.close()
    with pytest.raises(Unavailable):
        lake.sql(GROUPED)


def test_a_lake_is_closed_at_once_after_ctrl_c_while_spark_starts(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    """A starting Spark ignores interrupts. Ctrl-C has already waited for it once."""
    goes_on = threading.Event()

    def start(_sessions: LakeSessions, _server: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        goes_on.wait(timeout=60)
        raise NoSpark

    replace_session(monkeypatch, start)
    monkeypatch.setattr(cancellation, "INTERRUPT_SECONDS", 0.2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lake.sql(GROUPED, engine="spark")
    finally:
        signal.signal(signal.SIGINT, before)
    began = time.monotonic()
    lake.close()
    assert time.monotonic() - began < cancellation.CLOSING_SECONDS / 2
    goes_on.set()


def test_explain_shows_what_the_query_would_do(lake: Lake):
    assert lake.explain_sql(GROUPED).reason
    assert lake.explain_sql(GROUPED).engine == lake.sql(GROUPED).engine == "hot"
    with pytest.raises(InvalidRequest, match="STDDEV"):
        lake.explain_sql(f"SELECT stddev(x) AS s FROM {PEOPLE}", engine="hot")


def test_explain_refuses_the_joins_that_a_query_refuses(lake_path: Path, lake: Lake):
    del lake
    product = f"SELECT a.id + 1 FROM {PEOPLE} a, {PEOPLE} b, {PEOPLE} c"
    with Lake.open(lake_path, settings=Settings(durable=False, query_pairs=1000)) as other:
        for ask in (other.sql, other.explain_sql):
            with pytest.raises(InvalidRequest, match="query_pairs"):
                ask(product)


def test_answers_are_cached_within_their_budget(lake_path: Path, lake: Lake):
    del lake
    with Lake.open(lake_path, settings=Settings(durable=False, result_cache_mb=0)) as other:
        other.sql(GROUPED)
        assert not other.sql(GROUPED).cached


def test_special_doubles_are_returned_unchanged(lake: Lake):
    numbers = lake.create("crm.sales.numbers", "id BIGINT NOT NULL, d DOUBLE", key="id")
    numbers.upsert([{"id": 0, "d": -0.0}, {"id": 1, "d": math.nan}, {"id": 2, "d": math.inf}, {"id": 3, "d": None}])
    found = [row[0] for row in lake.sql("SELECT d FROM crm.sales.numbers ORDER BY id").rows]
    assert math.copysign(1, found[0]) == -1
    assert math.isnan(found[1])
    assert found[2:] == [math.inf, None]


def test_columns_that_are_altered_are_seen_by_the_next_query(lake: Lake):
    assert lake.sql(f"SELECT * FROM {PEOPLE} LIMIT 1").columns == ["id", "n", "name", "amount", "x"]
    lake.dataset(PEOPLE).alter(add="city STRING")
    assert lake.sql(f"SELECT * FROM {PEOPLE} LIMIT 1").columns[-1] == "city"


def test_polars_is_required_only_where_it_is_used(lake: Lake):
    result = lake.sql(GROUPED)
    if "polars" in sys.modules:
        assert result.to_polars().height == 3
        return
    try:
        import polars  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidRequest, match=r"siltstone\[polars\]"):
            result.to_polars()
    else:
        assert result.to_polars().height == 3


def test_a_result_without_columns_has_rows():
    result = QueryResult(table=pa.table({}), engine="hot", truncated=False, seconds=0.0)
    assert result.rows == []


def test_nothing_of_a_purged_dataset_stays_among_cached_answers(lake: Lake):
    lake.sql(GROUPED, query_id="before")
    parts_of(lake.dataset(PEOPLE)).store.forget()
    assert not lake.sql(GROUPED).cached
    with pytest.raises(NotFound):
        lake.queries.page("before", 1)


def test_a_purge_by_another_process_removes_cached_answers_and_pages(lake: Lake):
    lake.sql(GROUPED, query_id="before")
    with Lake.open(lake.path, settings=Settings(durable=False)) as other:
        base = store_of(other.dataset(PEOPLE)).base
        base.commit(lambda parent: Commit(kind=CommitKind.EPOCH, plan_version=parent.version, epoch=7))
    with pytest.raises(NotFound):
        lake.queries.page("before", 1)
    assert not lake.sql(GROUPED, query_id="after").cached
    assert lake.queries.page("after", 1).row_count == 3
    with Lake.open(lake.path, settings=Settings(durable=False)) as other:
        other.drop(PEOPLE)
    with pytest.raises(NotFound):
        lake.queries.page("after", 1)


def test_the_query_that_notices_a_purge_keeps_its_own_answer_and_pages(lake: Lake):
    lake.sql(GROUPED, query_id="before")
    with Lake.open(lake.path, settings=Settings(durable=False)) as other:
        base = store_of(other.dataset(PEOPLE)).base
        base.commit(lambda parent: Commit(kind=CommitKind.EPOCH, plan_version=parent.version, epoch=7))
    assert not lake.sql(GROUPED, query_id="noticed").cached
    assert lake.queries.page("noticed", 1).row_count == 3
    assert lake.sql(GROUPED).cached
    with pytest.raises(NotFound):
        lake.queries.page("before", 1)


def test_a_query_that_began_before_a_purge_keeps_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    answer = hot_executor.answer

    def purged_meanwhile(*given: Any, **named: Any) -> pa.Table:  # noqa: ANN401
        parts_of(lake.dataset(PEOPLE)).store.forget()
        return answer(*given, **named)

    monkeypatch.setattr(hot_executor, "answer", purged_meanwhile)
    assert lake.sql(GROUPED, query_id="during").row_count == 3
    monkeypatch.setattr(hot_executor, "answer", answer)
    with pytest.raises(NotFound):
        lake.queries.page("during", 1)
    assert not lake.sql(GROUPED).cached
