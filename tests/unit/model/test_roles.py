import pytest

from siltstone.config import Role, Settings
from siltstone.errors import InvalidRequest
from siltstone.model.roles import check_may_compact, check_may_write, may_compact, may_write
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("role", "writes", "compacts"),
    [(Role.ALL, True, True), (Role.COMPACTOR, False, True), (Role.READER, False, False)],
)
def test_the_permissions_of_each_role(role: Role, writes: bool, compacts: bool):  # noqa: FBT001
    assert (may_write(role), may_compact(role)) == (writes, compacts)


def test_a_role_given_as_text_has_the_same_permissions():
    with refused(InvalidRequest, None, "'reader'"):
        check_may_compact("reader")  # type: ignore[arg-type]
    with refused(InvalidRequest, None, "'reader'"):
        check_may_write("reader")  # type: ignore[arg-type]


def test_a_compaction_in_the_role_reader_is_refused_with_advice():
    with refused(InvalidRequest, None, "'reader'", "'compactor'", "'all'", "SILT_ROLE"):
        check_may_compact(Role.READER)
    check_may_compact(Role.COMPACTOR)


def test_a_write_in_the_role_compactor_is_refused_with_advice():
    with refused(InvalidRequest, None, "'compactor'", "upsert"):
        check_may_write(Role.COMPACTOR, doing="upsert")
    check_may_write(Role.ALL)


def test_the_role_comes_from_the_settings_and_is_one_of_three():
    assert Settings.load(environment={}).role is Role.ALL
    assert Settings.load(environment={"SILT_ROLE": "reader"}).role is Role.READER
    with refused(InvalidRequest, None, "'role'", "'writer'"):
        Settings.load(environment={"SILT_ROLE": "writer"})
