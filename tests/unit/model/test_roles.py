import pytest

from siltstone.config import Role, Settings
from siltstone.errors import InvalidRequest
from siltstone.model.roles import check_may_compact, check_may_write, may_compact, may_write


@pytest.mark.parametrize(
    ("role", "writes", "compacts"),
    [(Role.ALL, True, True), (Role.COMPACTOR, False, True), (Role.READER, False, False)],
)
def test_what_each_role_may_do(role: Role, writes: bool, compacts: bool):  # noqa: FBT001
    assert (may_write(role), may_compact(role)) == (writes, compacts)


def test_a_reader_that_is_told_to_compact_is_told_what_to_do_instead():
    with pytest.raises(InvalidRequest, match=r"role 'reader' and may not compact\. .*'compactor' or 'all'.*SILT_ROLE"):
        check_may_compact(Role.READER)
    check_may_compact(Role.COMPACTOR)


def test_a_compactor_that_is_told_to_write_is_told_what_to_do_instead():
    with pytest.raises(InvalidRequest, match="role 'compactor' and may not upsert"):
        check_may_write(Role.COMPACTOR, doing="upsert")
    check_may_write(Role.ALL)


def test_the_role_comes_from_the_settings_and_is_one_of_three():
    assert Settings.load(environment={}).role is Role.ALL
    assert Settings.load(environment={"SILT_ROLE": "reader"}).role is Role.READER
    with pytest.raises(InvalidRequest, match="'role' must be one of all, compactor, reader, not 'writer'"):
        Settings.load(environment={"SILT_ROLE": "writer"})
