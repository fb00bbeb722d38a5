"""Roles of processes (setting ``role``). Pure. Every compaction and every write of rows is checked here first.

| role | reads | writes rows | compacts |
|---|---|---|---|
| ``all`` | yes | yes | yes |
| ``compactor`` | yes | no | yes |
| ``reader`` | yes | no | no |

A role keeps a process from the work of other roles. It is not a protection: use file permissions for that.
The checks raise InvalidRequest. Its message names `doing`, the requested operation.
"""

from siltstone.config import Role
from siltstone.errors import InvalidRequest


def may_compact(role: Role) -> bool:
    """True if a process with this role may run compactions."""
    return Role(role) is not Role.READER  # the role may come as text


def may_write(role: Role) -> bool:
    """True if a process with this role may write rows."""
    return Role(role) is Role.ALL


def check_may_compact(role: Role, *, doing: str = "compact") -> None:
    """Refuse a role that may not compact."""
    if not may_compact(role):
        raise _refusal(role, doing, f"{Role.COMPACTOR.value!r} or {Role.ALL.value!r}")


def check_may_write(role: Role, *, doing: str = "write") -> None:
    """Refuse a role that may not write rows."""
    if not may_write(role):
        raise _refusal(role, doing, f"{Role.ALL.value!r}")


def _refusal(role: Role, doing: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(
        f"This process has the role {str(role)!r} and may not {doing}. Do it in a process with the role {allowed}, "
        "or set SILT_ROLE."
    )
