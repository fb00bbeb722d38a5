import numpy as np
import pytest

from siltstone.errors import InvalidRequest
from siltstone.model.numbers import MAX_LONG, whole_number


@pytest.mark.parametrize("value", [1, MAX_LONG, np.int32(7)])
def test_integers_of_every_type_become_ints(value: object):
    number = whole_number("limit", value, least=1)
    assert type(number) is int
    assert number == value


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, MAX_LONG + 1, True, 1.0, "1", None, [1]),
        *(pytest.param(10**6000, id="6,000 digits"), pytest.param(-(10**6000), id="minus 6,000 digits")),
    ],
)
def test_other_values_are_refused_with_their_name(value: object):
    with pytest.raises(InvalidRequest, match="limit"):
        whole_number("limit", value, least=1)


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(InvalidRequest) as refusal:
        whole_number("limit", "x" * 10_000)
    assert len(str(refusal.value)) < 200
