"""The tour of `silt demo`: generated candidates and calls, Siltstone's operations on them, and the proof at the end.

Flow:

1. Spark generates candidates (CSV) and calls (Parquet), identical in every run, and loads both;
2. upserts and tombstones are written without Spark; SQL shows the merged view and the raw rows;
3. Spark folds and purges, so that three people and their calls are erased;
4. a new process, without Spark, opens the lake and counts;
5. every file of the lake is scanned for the erased values.

Each step is reported when it ends. Each claim is a value that is checked and shown. A claim that does not hold fails
the tour.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from siltstone.clock import Clock, SystemClock
from siltstone.config import Settings
from siltstone.erasure.scan import How, scan
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.lake import Lake
from siltstone.model.units import counted, size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from siltstone.dataset.dataset import Dataset
    from siltstone.query.result import QueryResult

CANDIDATES: Final = "crm.sales.candidates"
CALLS: Final = "crm.sales.calls"
FEWEST: Final = 10
MOST_CANDIDATES: Final = 999_999
"""Most candidates of a tour, because keys have six digits."""
UPSERTED: Final = 500
REOPEN_SECONDS: Final = 120

CANDIDATE_COLUMNS: Final = {
    "candidate_id": ("STRING", "concat('CAND-', lpad(string(id + 1), 6, '0'))"),
    "name": (
        "STRING",
        "concat(element_at(array('Ada','Ben','Cleo','Dov','Eva','Finn'), int(id % 6) + 1), ' ', hex(id * 7919))",
    ),
    "email": ("STRING", "concat('person', lpad(string(id + 1), 6, '0'), '@example.org')"),
    "phone": ("STRING", "concat('+49 30 ', lpad(string((id * 104729) % 10000000), 7, '0'))"),
    "city": ("STRING", "element_at(array('Berlin','Lyon','Porto','Graz','Turin'), int(id % 5) + 1)"),
    "country": ("STRING", "element_at(array('DE','FR','PT','AT','IT'), int(id % 5) + 1)"),
    "status": ("STRING", "element_at(array('new','screened','interview','offer'), int(id % 4) + 1)"),
    "source": ("STRING", "element_at(array('referral','site','fair'), int(id % 3) + 1)"),
    "recruiter_id": ("STRING", "concat('REC-', lpad(string(id % 40), 3, '0'))"),
    "years": ("INT", "int(id % 31)"),
    "salary": ("DECIMAL(10,2)", "cast(30000 + (id * 37) % 90000 as decimal(10,2))"),
    "score": ("DOUBLE", "round(((id * 7919) % 1000) / 1000.0, 3)"),
    "remote": ("BOOLEAN", "id % 2 = 0"),
    "applied_on": ("DATE", "date_add(date'2023-01-01', int(id % 900))"),
    "updated_at": ("TIMESTAMP", "timestamp_seconds(1700000000 + id)"),
}
CALL_COLUMNS: Final = {
    "call_id": ("STRING", "concat('CALL-', lpad(string(id + 1), 9, '0'))"),
    "candidate_id": ("STRING", "concat('CAND-', lpad(string((id * 7919) % {candidates} + 1), 6, '0'))"),
    "recruiter_id": ("STRING", "concat('REC-', lpad(string(id % 40), 3, '0'))"),
    "at": ("TIMESTAMP", "timestamp_seconds(1700000000 + id * 13)"),
    "duration_seconds": ("INT", "int((id * 31) % 3600)"),
    "outcome": ("STRING", "element_at(array('reached','voicemail','no answer'), int(id % 3) + 1)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One finished step of the tour: its engine, rows, bytes and duration."""

    title: str
    engine: str
    rows: int | None = None
    bytes: int | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim of the tour. It holds if the actual value equals the expected one."""

    text: str
    expected: Any
    actual: Any

    @property
    def holds(self) -> bool:
        """True if the actual value equals the expected one."""
        return bool(self.expected == self.actual)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """The size of the tour, its folder, and the people it erases."""

    root: Path
    candidates: int
    calls: int

    @property
    def lake(self) -> Path:
        """The lake's folder."""
        return self.root / "lake"

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Numbers of the candidates to erase: the first, the middle and the last."""
        return (1, self.candidates // 2, self.candidates)

    @property
    def keys(self) -> list[str]:
        """Keys of the candidates to erase."""
        return [f"CAND-{number:06d}" for number in self.numbers]

    @property
    def traces(self) -> list[str]:
        """Texts that must be gone at the end: keys and addresses of the erased candidates."""
        return [*self.keys, *[f"person{number:06d}@example.org" for number in self.numbers]]


@dataclass(slots=True)
class Report:
    """Result of the tour: its steps and claims."""

    steps: list[Step] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """True if every claim holds."""
        return all(claim.holds for claim in self.claims)


class _Guide:
    """Measures steps and reports them as they end."""

    def __init__(self, on_step: Callable[[Step], None], clock: Clock) -> None:
        self.report = Report()
        self._on_step = on_step
        self._clock = clock

    @contextmanager
    def step(self, title: str, engine: str = "") -> Iterator[dict[str, Any]]:
        """Measure the block, which fills in rows, bytes and a note, and the engine if it is known only later."""
        facts: dict[str, Any] = {"engine": engine}
        started = self._clock.monotonic_seconds()
        yield facts
        done = Step(title=title, seconds=self._clock.monotonic_seconds() - started, **facts)
        self.report.steps.append(done)
        self._on_step(done)

    def claim(self, text: str, *, expected: Any, actual: Any) -> None:  # noqa: ANN401
        """Record a claim."""
        self.report.claims.append(Claim(text=text, expected=expected, actual=actual))


def run(
    tour: Tour, *, on_step: Callable[[Step], None], settings: Settings | None = None, clock: Clock | None = None
) -> Report:
    """Run the tour in a folder that is empty or does not exist.

    Raises:
        InvalidRequest: the tour is too small, or the folder is not empty.
    """
    if tour.candidates < FEWEST or tour.calls < FEWEST:
        raise InvalidRequest(f"The demo needs at least {FEWEST} candidates and {FEWEST} calls.")
    if tour.candidates > MOST_CANDIDATES:
        raise InvalidRequest(f"The demo takes at most {MOST_CANDIDATES} candidates; their keys have six digits.")
    if tour.root.exists() and (not tour.root.is_dir() or any(tour.root.iterdir())):
        raise InvalidRequest(f"{tour.root} is not an empty folder. Choose another path for --keep.")
    guide = _Guide(on_step, clock or SystemClock())
    chosen = settings or Settings.load(spark_short_run=True, spark_shared=False)  # a tour leaves no process running
    with Lake.open(tour.lake, settings=chosen) as lake:
        people, calls = _load(guide, lake, tour)
        _write(guide, lake, tour, people)
        call_ids = _query(guide, lake, tour)
        if call_ids:
            with guide.step("tombstone their calls", "pyarrow") as facts:
                facts["rows"] = calls.tombstone(call_ids, actor="dpo", reason="request 17").rows
        _compact(guide, tour, people, calls)
    _reopen(guide, tour, expected_calls=tour.calls - len(call_ids))
    _prove(guide, tour)
    return guide.report


def _load(guide: _Guide, lake: Lake, tour: Tour) -> "tuple[Dataset, Dataset]":
    with guide.step("start a Spark session", "spark") as facts:
        spark = lake.spark()
        facts["note"] = f"Spark {spark.version}"
    files = {CANDIDATES: tour.root / "candidates.csv", CALLS: tour.root / "calls.parquet"}
    frames = {
        CANDIDATES: _generated(spark.range(tour.candidates).toDF("id"), CANDIDATE_COLUMNS, tour),
        CALLS: _generated(spark.range(tour.calls).toDF("id"), CALL_COLUMNS, tour),
    }
    for name, path in files.items():
        with guide.step(f"generate {path.name}", "spark") as facts:
            writer = frames[name].write
            writer.csv(str(path), header=True) if path.suffix == ".csv" else writer.parquet(str(path))
            written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            facts |= {"rows": tour.candidates if name == CANDIDATES else tour.calls, "bytes": written}
    with guide.step("create two datasets", "delta-rs") as facts:
        people = lake.create(CANDIDATES, _ddl(CANDIDATE_COLUMNS), key="candidate_id", subject=["candidate_id", "email"])
        calls = lake.create(CALLS, _ddl(CALL_COLUMNS), key="call_id", subject="candidate_id")
        facts["note"] = f"{len(CANDIDATE_COLUMNS)} and {len(CALL_COLUMNS)} columns"
    for dataset, name in ((people, CANDIDATES), (calls, CALLS)):
        with guide.step(f"ingest {files[name].name}", "spark") as facts:
            loaded = dataset.ingest(files[name], format=files[name].suffix[1:])
            facts |= {"rows": loaded.rows, "bytes": loaded.bytes, "note": f"files: {loaded.files}, sorted by key"}
    guide.claim("candidates loaded", expected=tour.candidates, actual=people.status().rows_in_base)
    guide.claim("calls loaded", expected=tour.calls, actual=calls.status().rows_in_base)
    return people, calls


def _ddl(columns: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())


def _generated(ids: "DataFrame", columns: dict[str, tuple[str, str]], tour: Tour) -> "DataFrame":
    """Generate rows from a range of ids. The same id always gives the same row."""
    expressions = {name: text.replace("{candidates}", str(tour.candidates)) for name, (_, text) in columns.items()}
    return ids.selectExpr(*[f"{text} AS {name}" for name, text in expressions.items()])


def _write(guide: _Guide, lake: Lake, tour: Tour, people: "Dataset") -> None:
    """Upsert some rows, including those of the three people, then tombstone the three. Arrow writes the change files."""
    many = min(UPSERTED, tour.candidates // 2)
    last = f"CAND-{many:06d}"
    with guide.step(f"SELECT the first {many} candidates") as facts:
        result = lake.sql(f"SELECT * FROM {CANDIDATES} WHERE candidate_id <= '{last}'", max_rows=many)  # noqa: S608
        candidates = result.to_arrow()
        facts |= {"rows": candidates.num_rows, "engine": result.engine}
    status = pa.repeat(pa.scalar("hired"), candidates.num_rows)
    rows = candidates.set_column(candidates.schema.get_field_index("status"), "status", status)
    with guide.step("upsert them as hired", "pyarrow") as facts:
        ack = people.upsert(rows)
        facts |= {"rows": ack.rows, "note": f"sequence {ack.sequence}, durable"}
    with guide.step("upsert one row", "pyarrow") as facts:
        ack = people.upsert([{**rows.slice(1, 1).to_pylist()[0], "city": "Oslo"}])
        facts |= {"rows": 1, "note": f"sequence {ack.sequence}, durable"}
    with guide.step("tombstone " + ", ".join(tour.keys), "pyarrow") as facts:
        ack = people.tombstone(tour.keys, actor="dpo", reason="request 17")
        facts |= {"rows": ack.rows, "note": f"sequence {ack.sequence}, hidden at once"}


def _query(guide: _Guide, lake: Lake, tour: Tour) -> list[str]:
    """Query the merged view; return the calls of the three people, which are erased as well."""
    remaining = tour.candidates - len(tour.keys)
    merged = _run_query(guide, lake, "count the merged view", f"SELECT count(*) FROM {CANDIDATES}")  # noqa: S608
    raw = _run_query(guide, lake, "count the raw rows", "SELECT count(*) FROM crm.sales.__raw__candidates")
    guide.claim("candidates in the merged view before the fold", expected=remaining, actual=merged.rows[0][0])
    guide.claim("candidates in the raw view before the fold", expected=tour.candidates, actual=raw.rows[0][0])
    in_oslo = f"SELECT count(*) FROM {CANDIDATES} WHERE city = 'Oslo'"  # noqa: S608
    oslo = _run_query(guide, lake, "filter on an upserted value", in_oslo)
    guide.claim("candidates in Oslo after one upsert", expected=1, actual=oslo.rows[0][0])
    joined = _run_query(
        guide,
        lake,
        "join, group and order",
        f"SELECT c.country, count(*) AS calls, avg(k.duration_seconds) AS average FROM {CALLS} k "  # noqa: S608
        f"JOIN {CANDIDATES} c ON k.candidate_id = c.candidate_id GROUP BY c.country ORDER BY c.country",
    )
    keys = ", ".join(f"'{key}'" for key in tour.keys)
    theirs = f"SELECT call_id FROM {CALLS} WHERE candidate_id IN ({keys})"  # noqa: S608
    their_calls = _run_query(guide, lake, "find the calls of the three", theirs, max_rows=100_000)
    guide.claim(
        "calls in the join", expected=tour.calls - their_calls.row_count, actual=sum(row[1] for row in joined.rows)
    )
    return [row[0] for row in their_calls.rows]


def _run_query(guide: _Guide, lake: Lake, title: str, query: str, *, max_rows: int | None = None) -> "QueryResult":
    with guide.step(title) as facts:
        result = lake.sql(query, max_rows=max_rows)
        first = ", ".join(str(value) for value in result.rows[0]) if result.row_count else "none"
        facts |= {"rows": result.row_count, "engine": result.engine, "note": f"first row: {first}"}
    return result


def _compact(guide: _Guide, tour: Tour, people: "Dataset", calls: "Dataset") -> None:
    with guide.step("fold candidates", "spark") as facts:
        report = people.compact()
        facts |= {
            "rows": report.final_rows,
            "bytes": report.bytes_after,
            "note": counted(report.batches_folded, "batch"),
        }
    guide.claim("rows dropped by tombstones", expected=len(tour.keys), actual=report.rows_dropped_by_tombstones)
    guide.claim(
        "candidates in base after the fold", expected=tour.candidates - len(tour.keys), actual=report.final_rows
    )
    with guide.step("scan the lake before the purge", "pyarrow") as facts:
        before = scan(tour.lake, tour.traces)
        holding = {finding.file for finding in before.findings}
        facts |= {"bytes": before.bytes, "note": f"the three are still in {len(holding)} of {before.files} files"}
    guide.claim("the scan finds the three where they still are", expected=True, actual=bool(holding))
    for dataset in (people, calls):
        with guide.step(f"purge {dataset.name}") as facts:
            report = dataset.compact(purge=True)
            note = f"{counted(report.files_deleted, 'file')} deleted, {size_text(report.bytes_deleted)}"
            facts |= {"rows": report.final_rows, "bytes": report.bytes_after, "note": note}
            facts["engine"] = "spark" if report.batches_folded else "delta-rs"  # which writes the checkpoint


def _reopen(guide: _Guide, tour: Tour, *, expected_calls: int) -> None:
    """Count rows in a new process that shares no state with this one."""
    with guide.step("open the lake in a new process", "delta-rs") as facts:
        command = [sys.executable, "-m", "siltstone.cli", "--lake", str(tour.lake), "--json", "status"]
        process = subprocess.run(command, capture_output=True, text=True, timeout=REOPEN_SECONDS, check=False)  # noqa: S603
        if process.returncode:
            raise Unavailable(f"A new process could not open the lake: {process.stderr.strip()}")
        statuses = {status["dataset"]: status for status in json.loads(process.stdout)}
        facts["rows"] = sum(status["rows_in_base"] for status in statuses.values())
        facts["note"] = "silt status, no Spark"
    people = statuses[CANDIDATES]
    guide.claim("candidates seen by a new process", expected=tour.candidates - 3, actual=people["rows_in_base"])
    guide.claim("calls seen by a new process", expected=expected_calls, actual=statuses[CALLS]["rows_in_base"])
    guide.claim(
        "rows waiting to be folded", expected=0, actual=sum(status["backlog_rows"] for status in statuses.values())
    )


def _prove(guide: _Guide, tour: Tour) -> None:
    with guide.step("scan every file of the lake", "pyarrow") as facts:
        after = scan(tour.lake, tour.traces)
        kinds = f"{after.files} files, {after.parquet_files} Parquet, {after.json_files} JSON"
        facts |= {"bytes": after.bytes, "note": kinds}
    guide.claim("files that could not be searched", expected=0, actual=len(after.unreadable))
    for trace in tour.traces:
        files = {(finding.how, finding.file) for finding in after.findings if finding.value == trace}
        counts = [sum(how is by for by, _ in files) for how in (How.NAME, How.RAW, How.DECODED)]
        guide.claim(f"files with {trace}: in name, raw bytes, decoded values", expected=[0, 0, 0], actual=counts)
