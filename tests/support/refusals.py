"""Errors as tests check them: by type, reason and the one fact that matters, never by whole sentences."""

import re
from types import TracebackType
from typing import Final

import pytest

from siltstone.errors import Reason, SiltstoneError


class refused:  # noqa: N801  # used as pytest.raises is
    """Expect an error of one of these kinds with this reason.

    Its message has the facts: a path, a dataset, a number.
    """

    def __init__(
        self, kind: type[SiltstoneError] | tuple[type[SiltstoneError], ...], reason: Reason | None, *facts: object
    ) -> None:
        """Set the expected kinds, reason and facts."""
        self._raises = pytest.raises(kind)
        self._reason = reason
        self._facts = [str(fact) for fact in facts]

    def __enter__(self) -> pytest.ExceptionInfo[SiltstoneError]:
        """Return the error, which is available when the block has ended."""
        self._found = self._raises.__enter__()
        return self._found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Check the error."""
        if not self._raises.__exit__(kind, error, trace):
            return False
        actual = self._found.value
        assert actual.reason is self._reason, (actual.reason, str(actual))
        assert [fact for fact in self._facts if fact not in str(actual)] == [], str(actual)
        return True


_FIGURE: Final = re.compile(
    r"'[^']*'|\d{4}-\d\d-\d\d(?:[ T]\d\d(?::\d\d)*)?|\d(?:[\d,.]*\d)?%?|\b\w+_\w+\b|\bj\d*\b"
    r"|\b(?:hourly|daily|weekly|monthly|fold|squash|vacuum|cluster|events|hour|day|week|month)\b"
)


def figures(text: str) -> str:
    """Return the numbers, times and names of a text for people, in their order: the words around them may change.

    >>> figures("9 of 10 files; files of unfinished job j7 are not counted")
    '9 10 j7'
    """
    return " ".join(_FIGURE.findall(text))
