import datetime
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from siltstone.clock import SystemClock
from siltstone.config import Settings
from siltstone.errors import InvalidRequest, Unavailable
from siltstone.spark.connect_server import ConnectServer
from siltstone.spark.session import session
from tests.support.internals import require_listener

pytestmark = pytest.mark.spark

JOIN = """
import sys
from siltstone.config import Settings
from siltstone.spark.session import session
spark = session(Settings(spark_remote=sys.argv[1]))
spark.range(10).write.format("delta").save(sys.argv[2])
print(spark.read.format("delta").load(sys.argv[2]).count(), spark.conf.get("spark.sql.session.timeZone"))
"""


class Given:
    """Stands for a session: `session` must return it unchanged."""


def test_the_given_session_wins():
    given = Given()
    assert session(Settings(), given=given) is given  # type: ignore[arg-type,comparison-overlap]


def test_the_active_session_is_joined_and_not_changed(spark: SparkSession):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert session(Settings(spark={"spark.sql.shuffle.partitions": "77"})) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before == "2"


def test_a_thread_that_never_used_spark_gets_the_same_session(spark: SparkSession):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(session, Settings()).result() is spark


def test_delta_is_written_and_read(spark: SparkSession, tmp_path: Path):
    path = str(tmp_path / "table")
    spark.range(100).write.format("delta").save(path)
    spark.range(50).write.format("delta").mode("append").save(path)
    assert spark.read.format("delta").load(path).count() == 150
    assert spark.read.format("delta").option("versionAsOf", 0).load(path).count() == 100


def test_sql_on_a_delta_path_works(spark: SparkSession, tmp_path: Path):
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    spark.sql(f"DELETE FROM delta.`{tmp_path}/table` WHERE id = 1")
    assert {row.id for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()} == {0, 2}


def test_times_are_utc_and_written_as_microseconds(spark: SparkSession, tmp_path: Path):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    spark.sql("SELECT timestamp'2026-01-02 03:04:05.678901' AS at").write.parquet(str(tmp_path / "files"))
    (file,) = (tmp_path / "files").glob("*.parquet")
    column = pq.ParquetFile(file).metadata.row_group(0).column(0)
    assert (column.physical_type, column.compression) == ("INT64", "ZSTD")
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    assert pq.read_table(file)["at"].to_pylist() == [moment]


def test_a_query_that_fails_prints_nothing(spark: SparkSession, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(PySparkException, match="no_such_column"):
        spark.range(3).select("no_such_column")
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        spark.range(3).selectExpr("1 / id").collect()
    assert capfd.readouterr().err == ""


def test_a_child_process_joins_the_connect_server(connect_server: ConnectServer, tmp_path: Path):
    command = [sys.executable, "-c", JOIN, connect_server.address, str(tmp_path / "table")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("10 UTC\n", "")


def test_a_server_that_is_not_there_is_unavailable_at_once():
    with pytest.raises(Unavailable, match="spark_remote"):
        require_listener("sc://127.0.0.1:1")


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(InvalidRequest, match="sc://host:port"):
        require_listener("http://127.0.0.1")


@pytest.mark.deep
def test_the_connect_server_ends_with_a_parent_that_is_killed(spark_settings: Settings):
    code = "import os, sys; from siltstone.config import Settings; from siltstone.spark.connect_server import connect_server\n"
    code += f"server = connect_server({spark_settings!r})\nprint(server.port, flush=True)\nos.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    clock = SystemClock()
    deadline = clock.monotonic_seconds() + 60
    while clock.monotonic_seconds() < deadline:
        try:
            require_listener(f"sc://127.0.0.1:{done.stdout.strip()}")
        except Unavailable:
            return
        clock.sleep(0.5)
    pytest.fail("the server outlived its parent")
