"""Valid names and sequence numbers of producers."""

import uuid
from pathlib import Path

import numpy as np
import pytest

from siltstone import InvalidRequest, Lake
from siltstone.dataset.write.change_writer import check_producer
from siltstone.model.numbers import MAX_LONG
from tests.support.internals import parts_of
from tests.support.people import create


@pytest.mark.parametrize(("given", "number"), [(0, 0), (7, 7), (np.int64(3), 3), (MAX_LONG, MAX_LONG)])
def test_whole_numbers_that_a_log_can_hold_are_taken(given: int, number: int) -> None:
    found = check_producer("p", given)
    assert found == number
    assert type(found) is int


@pytest.mark.parametrize("given", [-1, 2**63, uuid.UUID(int=2**127).int, True, 7.5, "7"])
def test_invalid_producer_sequences_are_refused(given: int) -> None:
    with pytest.raises(InvalidRequest):
        check_producer("p", given)


@pytest.mark.parametrize("name", ["", "p\udcff", "a\nb", "x" * 1000])
def test_names_that_a_log_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_producer(name, 1)


def test_a_producer_without_a_sequence_is_rejected() -> None:
    with pytest.raises(InvalidRequest):
        check_producer("p", None)


def test_a_sequence_without_a_producer_is_rejected_for_a_frame(lake_path: Path) -> None:
    with Lake.open(lake_path) as lake:
        dataset = create(lake)
        with pytest.raises(InvalidRequest):
            parts_of(dataset).loader.write_frame(None, producer=None, sequence=1)  # type: ignore[arg-type]
