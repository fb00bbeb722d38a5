"""Checks that the rewrite contains every word, name and value of the original text.

The parser tolerates much: an extra comma, a clause without its content. A token that it skips would be ignored in the
answer. So the tokens of the original are counted against the tokens of the rewritten text.
"""

from collections import Counter
from collections.abc import Collection
from typing import Final

from sqlglot.tokenizer_core import Token, TokenType

from siltstone.errors import InvalidRequest
from siltstone.query.gate.parser import INTERVAL_UNITS
from siltstone.query.gate.tokenizer import TextPosition

_OTHERWISE: Final = frozenset(
    {
        TokenType.ALIAS,
        TokenType.ALL,
        TokenType.ASC,
        TokenType.DCOLON,
        TokenType.L_PAREN,
        TokenType.R_PAREN,
    }
)
"""Words and signs that may be written in another way: ALL and ASC are defaults, ``a::INT`` becomes a CAST."""
_SET_OPERATIONS: Final = frozenset({TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})
_WORDED: Final = frozenset({"SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"})
"""Functions with words between their arguments, which become commas."""
_BETWEEN_ARGUMENTS: Final = frozenset({"FROM", "FOR", "PLACING", "IN"})


def check_round_trip(asked: Collection[Token], written: Collection[Token], names: Collection[str]) -> None:
    """Reject a text with a token that is missing in the rewrite; `names` of datasets may be left out before a column.

    Raises:
        InvalidRequest: a token is missing; the message has its position.
    """
    left = Counter(_said(token) for token in written)
    worded = any(token.text.upper() in _WORDED for token in asked)
    for token in _joined(list(asked)):
        said = _said(token)
        as_name = ("name", token.text.upper())  # a keyword may be the name of a column
        if left[said] > 0:
            left[said] -= 1
        elif left[as_name] > 0:
            left[as_name] -= 1
        elif not _may_go(token, names, worded=worded):
            raise InvalidRequest(
                f"The query cannot be read: {token.text[:40]!r} at {TextPosition(token.line, token.col)} has no meaning where it "
                "stands. docs/sql.md lists what a query may have."
            )


def _joined(asked: list[Token]) -> list[Token]:
    """Replace the words IS NOT DISTINCT FROM by the sign that the rewrite uses; drop DISTINCT after a set operation."""
    kept: list[Token] = []
    for token in asked:
        if token.token_type is TokenType.DISTINCT and kept and kept[-1].token_type in _SET_OPERATIONS:
            continue
        kept.append(token)
        if [one.token_type for one in kept[-len(_NOT_DISTINCT) :]] == _NOT_DISTINCT:
            first = kept[-len(_NOT_DISTINCT)]
            kept[-len(_NOT_DISTINCT) :] = [Token(TokenType.NULLSAFE_EQ, "<=>", first.line, first.col)]
    return kept


def _may_go(token: Token, names: Collection[str], *, worded: bool) -> bool:
    if token.token_type in _OTHERWISE or (worded and token.text.upper() in _BETWEEN_ARGUMENTS):
        return True
    return token.token_type is TokenType.DOT or (token.text in names and token.token_type in _NAMES)


_NOT_DISTINCT: Final = [TokenType.IS, TokenType.NOT, TokenType.DISTINCT, TokenType.FROM]
_NAMES: Final = frozenset({TokenType.VAR, TokenType.IDENTIFIER})


def _said(token: Token) -> tuple[str, str]:
    """Return a token in a form without letter case and quotes."""
    kind = token.token_type
    if kind in _NAMES:
        upper = token.text.upper()
        return ("name", f"{upper.removesuffix('S')}S" if upper in INTERVAL_UNITS else upper)
    if kind is TokenType.STRING:
        return ("string", token.text)
    if kind is TokenType.NUMBER:
        return ("number", token.text)
    return ("word", kind.name)
