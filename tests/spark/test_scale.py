"""Spark is the pipeline: with a driver that takes 4 MB of results, a million rows are loaded, changed, read and folded."""

import json
import subprocess
import sys
from pathlib import Path

from siltstone.storage.connect import ConnectServer

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


def test_a_million_rows_never_pass_through_the_driver(connect_server: ConnectServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "lake"), str(tmp_path / "in")],
        env={
            "SILT_SPARK_REMOTE": connect_server.address,
            "PATH": "",
            "SILT_DURABLE": "off",
            "SILT_POSITIONS_FROM_ROWS": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
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
