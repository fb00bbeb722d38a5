"""Spark is the pipeline: with a driver that takes 4 MB of results, a million rows are loaded, changed, read and folded."""

import subprocess
import sys
from pathlib import Path

from siltstone.storage.spark import ConnectServer

SCRIPT = """
import json, sys
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
    print(json.dumps({"loaded": load.rows, "acked": ack.rows, "final": report.final_rows, "read": dataset.read().count(),
        "copied": spark.read.parquet(sys.argv[2] + ".out").count(), "negative": dataset.read().where("n < 0").count()}))
"""


def test_a_million_rows_never_pass_through_the_driver(connect_server: ConnectServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "lake"), str(tmp_path / "in")],
        env={"SILT_SPARK_REMOTE": connect_server.address, "PATH": "", "SILT_DURABLE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        '{"loaded": 1000000, "acked": 300000, "final": 1199999, "read": 1199999, "copied": 1199999, "negative": 300000}'
        in done.stdout
    )
