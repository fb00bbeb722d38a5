"""Which of Spark's errors mean that Spark is gone, and which are about what was asked."""

import grpc
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from siltstone.errors import Unavailable
from siltstone.storage.spark_failures import is_away, noticing_absence


def failure(code: grpc.StatusCode, text: str = "refused") -> SparkConnectGrpcException:
    return SparkConnectGrpcException(message=text, grpc_status_code=code)


AWAY = [
    failure(grpc.StatusCode.UNAVAILABLE),
    failure(grpc.StatusCode.UNAUTHENTICATED),
    failure(grpc.StatusCode.INTERNAL, "[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."),
]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: error.getGrpcStatusCode().name)
def test_nobody_or_somebody_else_answers(error: SparkConnectGrpcException):
    assert is_away(error)
    with pytest.raises(Unavailable, match="Spark went away"), noticing_absence():
        raise error


def test_what_grpc_says_is_told_without_its_frame():
    text = '<_Rendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "Connection refused"\n>'
    with (
        pytest.raises(Unavailable, match=r"away while it was needed: Connection refused\. Try"),
        noticing_absence(),
    ):
        raise failure(grpc.StatusCode.UNAVAILABLE, text)


def test_an_error_in_what_was_asked_stays_what_it_is():
    error = failure(grpc.StatusCode.INTERNAL, "[DIVIDE_BY_ZERO] Division by zero.")
    with pytest.raises(SparkConnectGrpcException), noticing_absence():
        raise error


def test_an_error_of_another_kind_passes():
    with pytest.raises(ValueError, match="UNAVAILABLE"), noticing_absence():
        raise ValueError("UNAVAILABLE")
