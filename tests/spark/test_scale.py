"""Spark is the pipeline: a million rows are loaded, changed, read and folded by a driver that accepts 4 MB of results."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from siltstone.spark.connect_server import ConnectServer

SCRIPT = """
import json, sys
import pyarrow as pa
from siltstone import Lake
with Lake.open(sys.argv[1]) as lake:
    spark = lake.spark()
    assert spark.conf.get("spark.driver.maxResultSize") == "4m"
    rows = "concat('K', lpad(cast(id as string), 9, '0')) id", "id n", "repeat(cast(id % 97 as string), 10) text"
    spark.range(1_000_000).selectExpr(*rows).write.parquet(sys.argv[2])
    dataset = lake.create("a.b.big", "id STRING, n BIGINT, text STRING", key="id")
    load = dataset.ingest(sys.argv[2])
    ack = dataset.upsert(spark.range(900_000, 1_200_000).selectExpr(rows[0], "-id n", rows[2]))
    dataset.tombstone(["K000000001"])
    dataset.read().write.parquet(sys.argv[2] + ".out")
    report = dataset.compact()
    dataset.upsert(pa.table({"id": [f"K{n:09d}" for n in range(0, 1_000_000, 97)], "n": [-7] * 10310, "text": [""] * 10310}))
    few = dataset.read().where("n = -7").count(), dataset.read().count()
    again = dataset.compact()
    names = {path.name[:6] for path in dataset.path.glob("base/data/*/0/*")}
    print(json.dumps({"few": few, "folded": again.final_rows, "in place": "00000-" in names,
        "loaded": load.rows, "acked": ack.rows, "final": report.final_rows, "read": dataset.read().count(),
        "copied": spark.read.parquet(sys.argv[2] + ".out").count(), "negative": dataset.read().where("n < 0").count()}))
"""


LOG_SCRIPT = """
import json, sys
from siltstone import Lake
from tests.support.internals import store_of
with Lake.open(sys.argv[1]) as lake:
    spark = lake.spark()
    assert spark.conf.get("spark.driver.maxResultSize") == "4m"
    log = lake.create("a.b.log", "at TIMESTAMP, account BIGINT, text STRING", time="at",
        cluster_by=["account", "text", "at"], dedup_by=["at", "account"], survivor="last")
    for first in (0, 400_000):
        rows = ("timestamp_seconds(1794700800 + id % 7200) at", "id account", f"concat('{first}-', id) text")
        log.append(spark.range(first, first + 600_000).selectExpr(*rows))
        log.compact()
    before = len(store_of(log).snapshot().base.files)
    rolled = lake.run_cycle(only=["daily"], force=True)
    after = len(store_of(log).snapshot().base.files)
    clustered = log.cluster()
    files = store_of(log).snapshot().base.files
    found = log.read().selectExpr("count(*)", "sum(account)", "count(distinct account)",
        "count_if(text like '400000-%')").collect()[0]
    print(json.dumps({"found": list(found), "fewer": after < before, "errors": [one.error for one in rolled if one.error],
        "rolled": sum(one.report["rows"] for one in rolled), "clustered": sum(one.rows for one in clustered),
        "marked": {path.split("/")[-2] for path in (file.path for file in files)} == {"cluster"}, "many": len(files) > 3}))
"""


def child(server: ConnectServer, tmp_path: Path, script: str, **settings: str) -> Any:  # noqa: ANN401
    """Run a script against the server in a separate process, and return its last line of output."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "lake"), str(tmp_path / "in")],
        env={"SILT_SPARK_REMOTE": server.address, "PATH": "", "SILT_DURABLE": "off", **settings}
        | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_million_rows_never_pass_through_the_driver(connect_server: ConnectServer, tmp_path: Path) -> None:
    outcome = child(connect_server, tmp_path, SCRIPT, SILT_POSITIONS_FROM_ROWS="0")
    assert outcome == {
        "loaded": 1_000_000,
        "acked": 300_000,
        "final": 1_199_999,
        "copied": 1_199_999,
        "few": [10_310, 1_199_999],
        "folded": 1_199_999,
        "in place": True,
        "read": 1_199_999,
        "negative": 309_279,
    }


@pytest.mark.deep
def test_a_log_of_a_million_rows_is_deduplicated_rolled_up_and_clustered_without_the_driver(
    connect_server: ConnectServer, tmp_path: Path
) -> None:
    outcome = child(
        connect_server, tmp_path, LOG_SCRIPT, SILT_TARGET_FILE_BYTES="500000", SILT_TIERS="daily.min_files=2"
    )
    assert outcome == {
        "found": [1_000_000, 499_999_500_000, 1_000_000, 600_000],
        "fewer": True,
        "errors": [],
        "rolled": 1_000_000,
        "clustered": 1_000_000,
        "marked": True,
        "many": True,
    }
