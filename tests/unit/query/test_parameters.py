"""Values of parameters are bound in their plain class, never by the text form of an object. No Spark."""

import datetime
import enum
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import admit, spark_text
from tests.support.refusals import refused

EAST = datetime.timezone(datetime.timedelta(hours=5))


class Liar(int):
    """A number whose text is something else."""

    def __str__(self) -> str:
        return "1 OR 1=1"

    __repr__ = __str__

    def __le__(self, other: object) -> bool:
        return True


class Poser(float):
    """A number with its own text form."""

    def __repr__(self) -> str:
        return "1') OR ('1'='1"

    __str__ = __repr__


class Level(int, enum.Enum):
    """A number with a name."""

    HIGH = 3


def written(value: object) -> str:
    """Return the text that replaces a value in the query for Spark."""
    admitted = admit("SELECT :p AS x FROM c.s.t", parameters={"p": value})
    text = spark_text(admitted, {admitted.references[0]: "v"}, common=str)
    return text.removeprefix("SELECT ").partition(" AS `x`")[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Liar(7), "7"),
        (Level.HIGH, "3"),
        ([Liar(7), 8], "array(7, 8)"),
        (Poser(2.5), "CAST('2.5' AS DOUBLE)"),
        (np.float64(1.5), "CAST('1.5' AS DOUBLE)"),
        (-0.0, "CAST('-0.0' AS DOUBLE)"),
        (math.nan, "CAST('NaN' AS DOUBLE)"),
        (-(2**31), "CAST('-2147483648' AS INT)"),
        (-(2**31) - 1, "CAST('-2147483649' AS BIGINT)"),
        (2**31, "CAST('2147483648' AS BIGINT)"),
        (np.str_("it's"), r"'it\'s'"),
        (Decimal("1E+3"), "CAST('1000' AS DECIMAL(4, 0))"),
        (pd.Timestamp("2026-03-29 03:30", tz="Europe/Berlin"), "CAST('2026-03-29 01:30:00+00:00' AS TIMESTAMP)"),
        (pd.Timestamp("2026-03-29 03:30"), "CAST('2026-03-29 03:30:00' AS TIMESTAMP_NTZ)"),
        (datetime.datetime(2026, 1, 1, 3, tzinfo=EAST), "CAST('2025-12-31 22:00:00+00:00' AS TIMESTAMP)"),
    ],
)
def test_only_the_value_of_an_object_is_bound(value: object, expected: str):
    assert written(value) == expected


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (datetime.datetime(1, 1, 1, tzinfo=EAST), ("1", "9999")),
        (datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-1))), ()),
        (pd.NaT, ()),
        (pd.Timestamp("2026-01-01 00:00:00.000000001"), ()),
        (2**63, ("64",)),
        ([2**63], ("64",)),
        (Decimal("NaN"), ("38",)),
        (Decimal(10) ** 38, ("38",)),
        ("\ud800", ()),
        ([None], ("NoneType",)),
        ([[1]], ()),
        (np.int64(1), ("int64",)),
        (datetime.time(1), ("datetime",)),
        pytest.param(object(), ("object",), id="an object"),
    ],
    ids=str,
)
def test_a_value_that_cannot_be_bound_is_refused_by_name(value: object, facts: tuple[str, ...]):
    with refused(InvalidRequest, None, *facts) as raised:
        admit("SELECT :p AS x FROM c.s.t", parameters={"p": value})
    assert ":p" in str(raised.value)


def test_a_parameter_without_a_value_is_reported_with_its_position():
    with refused(InvalidRequest, None, ":b ", "line 2, column 11"):
        admit("SELECT :a AS x FROM c.s.t\nWHERE x = :b", parameters={"a": 1})
