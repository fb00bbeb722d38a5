"""One run through the core, for any kind of Spark session; the result is plain data and the same for all."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from siltstone import Dataset, Lake, Settings
from tests.support.people import NAME, create, key, person, write_people

LOADED: Final = 200
UPSERTED: Final = range(190, 210)
FROM_FRAME: Final = (5, 300)
HIDDEN: Final = (7, 8, 205)
WAYS: Final[dict[str, dict[str, Any]]] = {
    "changes as Arrow": {},
    "changes read by executors": {"arrow_changes_rows": 0},
    "by position": {"positions_from_rows": 0},
}
UNSTEADY: Final = {"seconds", "bytes", "bytes_before", "bytes_after", "bytes_deleted", "files_deleted"}
"""Figures of a report that depend on the writer's version or the clock."""


def walk(path: str, way: str) -> dict[str, Any]:
    """Load, upsert rows and a frame, tombstone, read, query, fold and purge; return the result of each step."""
    settings = Settings.load(durable=False, **WAYS[way])
    with Lake.open(Path(path) / "lake", settings=settings) as lake:
        dataset = create(lake)
        seen: dict[str, Any] = {
            "load": _steady(dataset.ingest(write_people(Path(path) / "in.parquet", LOADED)).to_dict())
        }
        seen["upsert"] = dataset.upsert([person(number, city="new") for number in UPSERTED]).sequence
        changed = [person(number, city="frame") for number in FROM_FRAME]
        frame = lake.spark().createDataFrame(pa.Table.from_pylist(changed, schema=dataset.schema))
        seen["upsert of a frame"] = dataset.upsert(frame).sequence
        seen["tombstone"] = dataset.tombstone([key(number) for number in HIDDEN]).sequence
        seen["before the fold"] = _views(lake, dataset)
        seen["fold"] = _steady(dataset.compact().to_dict())
        seen["after the fold"] = _views(lake, dataset)
        seen["purge"] = _steady(dataset.compact(purge=True).to_dict())
        seen["after the purge"] = _views(lake, dataset)
    return seen


def expected_rows(*, raw: bool = False) -> list[list[Any]]:
    """Return key, number and city of the rows after the run, calculated by hand."""
    cities = {number: f"city {number % 7}" for number in range(LOADED)}
    cities |= dict.fromkeys(UPSERTED, "new") | dict.fromkeys(FROM_FRAME, "frame")
    return [[key(n), n, city] for n, city in sorted(cities.items()) if raw or n not in HIDDEN]


def _views(lake: Lake, dataset: Dataset) -> dict[str, Any]:
    counts = f"SELECT (SELECT count(*) FROM {NAME}), (SELECT count(*) FROM crm.sales.__raw__people)"
    return {
        "rows": _plain(dataset.read().toArrow()),
        "raw": _plain(dataset.read(raw=True).toArrow()),
        "counts": list(lake.sql(counts).rows[0]),
        "without Spark": _plain(dataset.to_arrow()),
    }


def _plain(table: pa.Table) -> list[list[Any]]:
    return sorted([row["id"], row["n"], row["city"]] for row in table.to_pylist())


def _steady(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in UNSTEADY}


def hour_in_new_york(path: str) -> dict[str, Any]:
    """Query the hour of a time on both engines, in a session of another zone; return both hours and that zone."""
    zone = "spark.sql.session.timeZone"
    with Lake.open(Path(path) / "lake", settings=Settings.load(durable=False)) as lake:
        lake.create("a.b.times", "id INT NOT NULL, u TIMESTAMP", key="id").upsert(
            [{"id": 1, "u": "2026-03-29T01:30:00Z"}]
        )
        lake.spark().conf.set(zone, "America/New_York")
        text = "SELECT hour(u) AS h FROM a.b.times"
        answers = {engine: lake.sql(text, engine=engine).rows[0][0] for engine in ("hot", "spark")}
        return answers | {"zone": lake.spark().conf.get(zone)}
