"""Errors as tests check them: by type, reason and the one fact that matters, never by whole sentences."""

from types import TracebackType

import pytest

from siltstone.errors import Reason, SiltstoneError


class refused:  # noqa: N801  # used as pytest.raises is
    """Expect an error of this kind and reason, whose message names the facts: a path, a dataset, a number."""

    def __init__(self, kind: type[SiltstoneError], reason: Reason | None, *facts: object) -> None:
        """Take what is expected."""
        self._raises = pytest.raises(kind)
        self._reason = reason
        self._facts = [str(fact) for fact in facts]

    def __enter__(self) -> pytest.ExceptionInfo[SiltstoneError]:
        """Return the error, which is known when the block has ended."""
        self._found = self._raises.__enter__()
        return self._found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Check the error."""
        if not self._raises.__exit__(kind, error, trace):
            return False
        found = self._found.value
        assert found.reason is self._reason, (found.reason, str(found))
        assert [fact for fact in self._facts if fact not in str(found)] == [], str(found)
        return True
