"""Functions for Spark's tasks are sent by value: Python workers of a cluster have pyarrow, but not this package."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from siltstone.spark.arrow_tasks import send_by_value
from siltstone.spark_tasks import csv_rows, fold, json_rows, merge_files, sort, stream
from siltstone.spark_tasks.io import Target, in_tasks

SCHEMA = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
TARGET = Target(schema=SCHEMA, folder="files", options={}, row_group_rows=10, durable=True)
FOLD = fold.FoldJob(target=TARGET, defaults={}, key=("id",), op="_op", upsert="U")
MERGE = merge_files.MergeJob(root="lake", target=TARGET, defaults={}, order=("at",))
READING = sort.Reading(schema=SCHEMA, required=("id",), key=("id",), max_key_bytes=10, bad="_bad")
SPREADING = sort.Spreading(folder="runs", key=("id",), bounds=b"", bad="_bad")
GATHERING = sort.Gathering(target=TARGET, key=("id",), runs=("run",), ranges=2)
TEXT: dict[str, Any] = {"schema": SCHEMA, "rules": {"id": "is not text", "at": "is not a time"}}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "find keys": in_tasks(fold.finder([("a.parquet", b"")], verify=True)),
    "fold": in_tasks(fold.rewriter([fold.Task(inputs=("a",), changes=b"", rows_per_file=1)], FOLD)),
    "merge": merge_files.merger([merge_files.MergeTask(inputs=("a",), low=1, high=None, memory_bytes=1)], MERGE),
    "sample files": sort.over_files(sort.sampler(), [[sort.FilePart(path="a", number=0, of=1)]], READING),
    "spread": sort.spreader(SPREADING),
    "gather": sort.gatherer([sort.Share(low=0, high=1, rows=3)], GATHERING),
    "csv": csv_rows.in_tasks(csv_rows.CsvJob(**TEXT, form=csv_rows.PLAIN)),
    "json": json_rows.in_tasks(json_rows.JsonJob(**TEXT, whole=False)),
    "stream": stream.packed,
}
WORKER = """
import pickle, sys
sys.modules["siltstone"] = None  # an import of it fails
refused = {}
for name, sent in pickle.load(sys.stdin.buffer).items():
    try:
        pickle.loads(sent)
    except ImportError as error:
        refused[name] = str(error)
print(refused)
"""


def test_a_worker_without_this_package_can_load_every_function():
    from pyspark import cloudpickle

    send_by_value()
    sent = {name: cloudpickle.dumps(function) for name, function in FUNCTIONS.items()}
    worker = subprocess.run([sys.executable, "-c", WORKER], input=pickle.dumps(sent), capture_output=True, check=True)
    assert worker.stdout.decode().strip() == "{}"
