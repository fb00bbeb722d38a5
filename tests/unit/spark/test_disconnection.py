"""Which of Spark's errors mean that Spark has ended, and which are errors of the query."""

import subprocess
import sys
import time

import grpc
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from siltstone.errors import Reason, Unavailable
from siltstone.spark.errors import is_away, leaves_end_unknown, noticing_absence, out_of_memory, says_out_of_memory
from siltstone.spark.jvm import ended_with, is_alive
from tests.support.refusals import refused


def failure(code: grpc.StatusCode, text: str = "refused") -> SparkConnectGrpcException:
    return SparkConnectGrpcException(message=text, grpc_status_code=code)


LOST_TASK = "Job aborted due to stage failure: Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.1 executor driver): "
AWAY = [
    failure(grpc.StatusCode.UNAVAILABLE),
    failure(grpc.StatusCode.UNAUTHENTICATED),
    failure(grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."),
]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: error.getGrpcStatusCode().name)
def test_no_answer_or_one_of_another_server_is_unavailable(error: SparkConnectGrpcException):
    assert is_away(error)
    with refused(Unavailable, Reason.SPARK_LOST), noticing_absence():
        raise error


def test_a_grpc_error_is_reported_without_its_frame():
    text = '<_Rendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "Connection refused"\n>'
    with refused(Unavailable, Reason.SPARK_LOST, " Connection refused. ") as found, noticing_absence():
        raise failure(grpc.StatusCode.UNAVAILABLE, text)
    assert "Rendezvous" not in str(found.value)


def test_an_error_of_the_query_is_not_translated():
    error = failure(grpc.StatusCode.INTERNAL, "[DIVIDE_BY_ZERO] Division by zero.")
    with pytest.raises(SparkConnectGrpcException), noticing_absence():
        raise error


def test_an_error_of_ours_is_judged_by_its_reason_and_not_by_its_words():
    assert is_away(Unavailable("Spark ended.", reason=Reason.SPARK_LOST))
    words = str(failure(grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."))
    for error in (words, "[INVALID_HANDLE.OPERATION_NOT_FOUND] Operation not found."):
        assert not is_away(Unavailable(f"The rows of a.b.c cannot be read: {error}"))
        assert not leaves_end_unknown(Unavailable(f"The rows of a.b.c cannot be read: {error}"))


def test_a_jvm_that_no_longer_listens_is_away():
    with refused(Unavailable, Reason.SPARK_LOST), noticing_absence():
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    "text",
    [
        "Job aborted: Lost task 0.0 in stage 1.0: java.lang.OutOfMemoryError: Java heap space",
        "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0.",
        "Terminating due to java.lang.OutOfMemoryError: GC overhead limit exceeded",
        "An error occurred while calling o7.collect.\n: java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util",
        "(java.lang.OutOfMemoryError) Java heap space",
        f"(org.apache.spark.SparkException) {LOST_TASK}org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY]",
        "Job aborted due to stage failure: Total size of serialized results of 3 tasks (1.2 GiB) is bigger than",
        "Not enough memory to build and broadcast the table to all worker nodes.",
        "26/07/30 12:00:00 ERROR Executor: Exception in task 0.0\njava.lang.OutOfMemoryError: Java heap space\n\tat a.b",
        "Something failed.\nCaused by: java.lang.OutOfMemoryError: Java heap space",
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space',
    ],
)
def test_memory_errors_of_spark_are_recognised(text: str):
    assert says_out_of_memory(text)
    assert not says_out_of_memory("[DIVIDE_BY_ZERO] Division by zero.")
    assert "spark_memory_mb" in str(out_of_memory())


@pytest.mark.parametrize(
    "text",
    [
        "[CAST_INVALID_INPUT] The value 'java.lang.OutOfMemoryError: Java heap space' of the type \"STRING\" cannot be cast.",
        "[CAST_INVALID_INPUT] The value 'a\njava.lang.OutOfMemoryError: Java heap space' cannot be cast.",
        f"{LOST_TASK}org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value ': java.lang.OutOfMemoryError'",
        "[USER_RAISED_EXCEPTION] java.lang.OutOfMemoryError: spark.driver.maxResultSize",
        'Caused by: java.lang.NumberFormatException: For input string: "Java heap space"',
        "[UNRESOLVED_COLUMN.WITHOUT_SUGGESTION] A column with name `OutOfMemoryError` cannot be resolved.",
    ],
)
def test_data_with_the_text_of_a_memory_error_is_not_classified_as_an_error_of_spark(text: str):
    assert not says_out_of_memory(text)


def test_the_exit_code_of_a_child_is_read_without_taking_it_away():
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(52)"])
    while ended_with(child.pid) is None:
        time.sleep(0.01)
    assert (ended_with(child.pid), is_alive(child.pid), child.wait(), is_alive(child.pid)) == (52, True, 52, False)
    assert ended_with(child.pid) is None


def test_a_child_that_was_killed_is_not_classified_as_one_that_exited_with_that_code():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        child.kill()
        while ended_with(child.pid) is None:
            time.sleep(0.01)
        assert ended_with(child.pid) == -9


def test_an_error_of_another_kind_passes():
    with pytest.raises(ValueError, match="UNAVAILABLE"), noticing_absence():
        raise ValueError("UNAVAILABLE")
