"""Use at the prompt and in notebooks: representations, frames and counts of a dataset, datasets from frames."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone import Dataset, InvalidRequest, Lake, NotFound
from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.dataset.load.schema_inference import schema_of_rows
from siltstone.demo import CANDIDATE_COLUMNS, CANDIDATES, Step, Tour
from siltstone.failpoints import arm
from siltstone.model.preview import MAX_CELL_CHARS, MAX_COLUMNS, MAX_ROWS
from siltstone.query.result import QueryResult
from tests.support.folds import fold_by_arrow
from tests.support.internals import demo_guide, demo_query, demo_write, load_created
from tests.support.refusals import figures, refused

FAST = Settings(durable=False)
NAME = "crm.sales.people"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", settings=FAST)


@pytest.fixture
def people(lake: Lake) -> Dataset:
    made = lake.create(NAME, "id STRING NOT NULL, city STRING, n BIGINT", key="id")
    made.upsert([{"id": f"P{n}", "city": "Bern" if n % 2 else "Basel", "n": n} for n in range(6)])
    fold_by_arrow(made)
    made.upsert([{"id": "P1", "city": "Zug", "n": 100}, {"id": "P7", "city": None, "n": 7}])
    made.tombstone(["P2"])
    return made


@pytest.fixture
def log(lake: Lake) -> Dataset:
    made = lake.create("web.eu.clicks", "at TIMESTAMP, visitor STRING, page STRING", time="at", subject="visitor")
    at = "2026-11-15T14:03:00Z"
    made.append([{"at": at, "visitor": v, "page": "/"} for v in ("a", "b", "c", "a")])
    made.tombstone(["a"])
    return made


# ---- representations ---------------------------------------------------------------------------------------------


def test_the_repr_of_objects_reads_no_rows(lake: Lake, people: Dataset, log: Dataset):
    assert repr(people) == f"<Dataset {NAME}, keyed by id>"
    assert repr(log) == "<Dataset web.eu.clicks, a log by at>"
    assert repr(lake) == f"<Lake {str(lake.path)!r}>"
    shown = people._repr_html_()
    assert "<td>city</td><td>string</td>" in shown
    assert "P1" not in shown
    assert "2 datasets" in lake._repr_html_()
    assert NAME in lake._repr_html_()


def test_a_dropped_dataset_and_a_broken_lake_still_have_a_repr(lake: Lake, people: Dataset):
    other = Lake.open(lake.path, settings=FAST).dataset(NAME)
    lake.drop(NAME)
    assert repr(other) == repr(people)
    assert "dropped" in other._repr_html_()
    (lake.path / "_system" / "datasets" / "_delta_log" / f"{0:020d}.json").write_text("{}")
    assert str(lake.path) in Lake.open(lake.path)._repr_html_()


def result(table: pa.Table) -> QueryResult:
    return QueryResult(table=table, engine="hot", truncated=True, seconds=0.1)


def test_a_result_shows_a_few_rows_and_columns_and_short_values():
    wide = pa.table({f"c{n}": ["x" * 1000] * 50 for n in range(100)})
    shown = repr(result(wide))
    assert len(shown.splitlines()) == MAX_ROWS + 3
    assert max(map(len, shown.splitlines())) < (MAX_COLUMNS + 1) * (MAX_CELL_CHARS + 3)
    assert figures(shown.splitlines()[-1]).startswith("50 100")
    assert result(wide)._repr_html_().count("<tr>") == MAX_ROWS + 1


def test_user_values_are_escaped_at_the_prompt_and_in_html():
    table = pa.table({"<b>": ["<script>alert(1)</script>", "\x1b[31mred\nline", None]})
    shown = result(table)._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown  # noqa: PT018
    assert "&lt;script&gt;" in shown
    text = repr(result(table))
    assert "\x1b" not in text
    assert "NULL" in text
    assert len(text.splitlines()) == 6


def test_one_row_is_counted_in_the_singular():
    shown = repr(QueryResult(table=pa.table({"n": [1]}), engine="hot", truncated=False, seconds=0.1))
    assert [fact for fact in ("1 row ", "1 column,", "hot", "0.100 s") if fact not in shown] == []


def test_a_result_without_columns_or_rows_has_a_repr():
    assert "0 rows" in repr(result(pa.table({"a": pa.array([], pa.int64())})))
    assert "0 columns" in repr(result(pa.table({})))


# ---- frames and counts -------------------------------------------------------------------------------------------


def test_columns_are_chosen_in_order_and_the_key_need_not_be_among_them(people: Dataset, log: Dataset):
    whole = people.to_arrow()
    for columns in (["n", "city"], ["city"], "n", ["n", "id"]):
        names = [columns] if isinstance(columns, str) else columns
        assert people.to_arrow(columns=columns).equals(whole.select(names))
    assert log.to_arrow(columns=["page"]).equals(log.to_arrow().select(["page"]))
    assert people.to_arrow(columns="n", raw=True).equals(people.to_arrow(raw=True).select(["n"]))
    with pytest.raises(InvalidRequest, match="'nope'"):
        people.to_arrow(columns=["nope"])


def test_a_condition_sees_merged_rows_and_never_those_that_were_replaced(people: Dataset):
    """P1 was in Bern before. A condition below the merge would return its old row."""
    assert sorted(people.to_arrow(where="city = 'Bern'").column("id").to_pylist()) == ["P3", "P5"]
    assert people.to_arrow(columns="id", where="n >= 100").column("id").to_pylist() == ["P1"]
    assert people.to_arrow(columns="id", where="city IS NULL").column("id").to_pylist() == ["P7"]
    assert people.to_arrow(where="ID = 'P2'").num_rows == 0


@pytest.mark.parametrize(
    "where", ["", "n >", "nope = 1", "(SELECT 1) = 1", "1 = 1", "n = 1; DROP TABLE x", "rand() < n"]
)
def test_an_invalid_condition_is_refused(people: Dataset, where: str):
    with pytest.raises(InvalidRequest):
        people.to_arrow(where=where)


def test_to_arrow_refuses_a_condition_that_only_spark_can_answer(people: Dataset):
    with pytest.raises(InvalidRequest):
        people.to_arrow(where="levenshtein(city, id, 3) = 1")


def test_counts_are_those_of_the_merged_rows(people: Dataset, log: Dataset):
    assert people.count() == people.to_arrow().num_rows == 6
    assert people.count(where="city = 'Bern'") == 2
    assert people.count(at=0) == 0
    assert log.count() == 2
    fold_by_arrow(people)
    assert people.count() == 6


def test_frames_of_pandas_and_polars_have_all_rows(people: Dataset):
    assert isinstance(people.to_pandas(), pd.DataFrame)
    assert sorted(people.to_pandas(columns=["id"])["id"]) == sorted(people.to_arrow().column("id").to_pylist())
    frame = people.to_polars(where="n > 3")
    assert isinstance(frame, pl.DataFrame)
    assert sorted(frame["id"].to_list()) == ["P1", "P4", "P5", "P7"]


# ---- datasets from frames ----------------------------------------------------------------------------------------

FRAMES = {
    "Arrow": pa.table({"id": ["a", "b"], "n": [1, 2]}),
    "pandas": pd.DataFrame({"id": ["a", "b"], "n": [1, 2]}),
    "Polars": pl.DataFrame({"id": ["a", "b"], "n": [1, 2]}),
    "dicts": [{"id": "a", "n": 1}, {"id": "b", "n": 2}],
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_dataset_is_created_from_a_frame_with_its_columns_and_rows(lake: Lake, kind: str):
    made = lake.create_from("a.b.c", FRAMES[kind], key="id")
    assert [(f.name, str(f.type)) for f in made.schema] == [("id", "string"), ("n", "int64")]
    assert made.to_arrow().sort_by("id").to_pylist() == FRAMES["dicts"]


def test_a_log_is_created_from_a_frame(lake: Lake):
    at = pd.Timestamp("2026-11-15T14:03:00Z").floor("us")
    made = lake.create_from("a.b.c", pd.DataFrame({"at": [at], "v": ["x"]}), time="at", subject="v")
    assert made.count() == 1


def test_rows_that_are_refused_leave_no_dataset_but_one_that_was_there_stays(lake: Lake):
    bad = pa.table({"id": ["a", None], "n": [1, 2]})
    with pytest.raises(InvalidRequest):
        lake.create_from("a.b.c", bad, key="id")
    with pytest.raises(NotFound):
        lake.dataset("a.b.c")
    lake.create_from("a.b.c", FRAMES["Arrow"], key="id")
    with pytest.raises(InvalidRequest):
        lake.create_from("a.b.c", bad, key="id")
    assert lake.dataset("a.b.c").count() == 2


def test_rows_that_are_refused_leave_no_dataset_with_times_without_a_zone(lake: Lake):
    bad = pd.DataFrame({"id": ["a"], "at": [pd.Timestamp("2026-01-01T00:00:00.000000001")]})
    with pytest.raises(InvalidRequest):
        lake.create_from("a.b.c", bad, key="id")
    assert lake.names() == []


def test_columns_of_later_dicts_count(lake: Lake):
    made = lake.create_from("a.b.c", [{"id": "a"}, {"id": "b", "n": 2}], key="id")
    assert made.to_arrow().sort_by("id").to_pylist() == [{"id": "a", "n": None}, {"id": "b", "n": 2}]


@pytest.mark.parametrize("place", ["create.before_tables", "create.after_registry"])
def test_rows_that_are_refused_leave_a_dataset_that_another_process_has_made_or_written(lake: Lake, place: str):
    other = Lake.open(lake.path, settings=FAST)

    def write(_name: str) -> None:
        other.create("a.b.c", "id STRING, n BIGINT", key="id").upsert(FRAMES["dicts"])

    with arm(place, write), pytest.raises(InvalidRequest):
        lake.create_from("a.b.c", pa.table({"id": ["a", None], "n": [1, 2]}), key="id")
    assert lake.dataset("a.b.c").count() == 2


@pytest.mark.parametrize("source", [[], 7, None, "no/such/file.parquet", [1, 2]])
def test_a_source_without_columns_is_refused_before_anything_is_created(lake: Lake, source: object):
    with pytest.raises((InvalidRequest, NotFound)):
        lake.create_from("a.b.c", source, key="id")
    assert lake.names() == []


def test_the_columns_of_a_file_are_those_that_like_takes(tmp_path: Path):
    pq.write_table(FRAMES["Arrow"], tmp_path / "x.parquet")
    assert schema_of_rows(str(tmp_path / "x.parquet")).names == ["id", "n"]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"id;name\n1;x\n", ("--delimiter",)),
        (b"id\tname\n1\tx\n", ()),
        (b"id,name\n1,Jos\xe9\n", ("UTF-8", "--enc")),
    ],
)
def test_a_csv_file_of_another_form_is_refused_with_the_way_to_load_it(
    tmp_path: Path, content: bytes, facts: tuple[str, ...]
):
    (tmp_path / "x.csv").write_bytes(content)
    with refused(InvalidRequest, None, *facts):
        schema_of_rows(str(tmp_path / "x.csv"))


class Refusing:
    """A lake and a dataset in one that refuses every load."""

    def __init__(self) -> None:
        self.dropped: list[object] = []

    def ingest(self, _source: Path) -> None:
        raise InvalidRequest("There are 2 rows with a repeated key. Say what orders them (--order-by).")

    def drop_unused(self, made: object) -> None:
        self.dropped.append(made)


def test_a_refused_load_of_create_names_the_command_with_its_options():
    fake: Any = Refusing()
    with refused(InvalidRequest, None, "--order-by", "silt create", "silt ingest"):
        load_created(fake, fake, Path("x.csv"))
    assert fake.dropped == [fake]


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 3, True, b"lake"])
def test_an_invalid_path_of_a_lake_is_refused(path: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        Lake.open(path)


@pytest.mark.parametrize("name", [None, 3, ("a", "b", "c")])
def test_a_dataset_name_of_another_type_is_refused(lake: Lake, name: Any):  # noqa: ANN401
    with pytest.raises(InvalidRequest):
        lake.dataset(name)


def test_the_demo_names_the_engine_that_answered(lake: Lake, people: Dataset):
    steps: list[Step] = []
    demo_query(demo_guide(steps.append, SystemClock()), lake, "count", f"SELECT count(*) FROM {people.name}")
    assert [(step.engine, step.rows) for step in steps] == [("hot", 1)]


def test_the_demo_names_arrow_for_writes_that_need_neither_spark_nor_delta_rs(lake: Lake, tmp_path: Path):
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in CANDIDATE_COLUMNS.items())
    candidates = lake.create(CANDIDATES, columns, key="candidate_id")
    candidates.upsert([{"candidate_id": f"CAND-{number:06d}"} for number in range(1, 21)])
    steps: list[Step] = []
    tour = Tour(root=tmp_path, candidates=20, calls=20)
    demo_write(demo_guide(steps.append, SystemClock()), lake, tour, candidates)
    assert [step.engine for step in steps] == ["hot", "pyarrow", "pyarrow", "pyarrow"]
