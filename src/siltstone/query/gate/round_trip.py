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

_OPTIONAL: Final = frozenset(
    {
        TokenType.ALIAS,
        TokenType.ALL,
        TokenType.ASC,
        TokenType.DCOLON,
        TokenType.DOT,
        TokenType.L_PAREN,
        TokenType.R_PAREN,
    }
)
"""Words and signs that may be missing. ALL and ASC are defaults, ``a::INT`` becomes a CAST, a name loses its schema."""
_NAMES: Final = frozenset({TokenType.VAR, TokenType.IDENTIFIER})
_NOT_DISTINCT: Final = [TokenType.IS, TokenType.NOT, TokenType.DISTINCT, TokenType.FROM]
_SET_OPERATIONS: Final = frozenset({TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})
_WORDED: Final = frozenset({"SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"})
"""Functions with words between their arguments, which become commas."""
_BETWEEN_ARGUMENTS: Final = frozenset({"FROM", "FOR", "PLACING", "IN"})


def check_round_trip(original: Collection[Token], written: Collection[Token], names: Collection[str]) -> None:
    """Reject a text with a token that is missing in the rewrite.

    `names` of datasets may be left out before a column.
    """
    remaining = Counter(_spelling(token) for token in written)
    worded = any(token.text.upper() in _WORDED for token in original)
    for token in _as_rewritten(list(original)):
        spelling = _spelling(token)
        as_name = ("name", token.text.upper())  # a keyword may be the name of a column
        if remaining[spelling] > 0:
            remaining[spelling] -= 1
        elif remaining[as_name] > 0:
            remaining[as_name] -= 1
        elif not (
            token.token_type in _OPTIONAL
            or (worded and token.text.upper() in _BETWEEN_ARGUMENTS)
            or (token.text in names and token.token_type in _NAMES)
        ):
            raise InvalidRequest(
                f"The query cannot be read: {token.text[:40]!r} at {TextPosition(token.line, token.col)} has no meaning "
                "there. docs/sql.md lists the allowed syntax."
            )


def _as_rewritten(original: list[Token]) -> list[Token]:
    """Replace the words IS NOT DISTINCT FROM by the sign that the rewrite uses; drop DISTINCT after a set operation."""
    tokens: list[Token] = []
    for token in original:
        if token.token_type is TokenType.DISTINCT and tokens and tokens[-1].token_type in _SET_OPERATIONS:
            continue
        tokens.append(token)
        if [last.token_type for last in tokens[-len(_NOT_DISTINCT) :]] == _NOT_DISTINCT:
            first = tokens[-len(_NOT_DISTINCT)]
            tokens[-len(_NOT_DISTINCT) :] = [Token(TokenType.NULLSAFE_EQ, "<=>", first.line, first.col)]
    return tokens


def _spelling(token: Token) -> tuple[str, str]:
    """Return a token in a form without letter case and quotes."""
    kind = token.token_type
    if kind in _NAMES:
        upper = token.text.upper()
        return ("name", f"{upper.removesuffix('S')}S" if upper in INTERVAL_UNITS else upper)
    return (kind.name, token.text if kind in (TokenType.STRING, TokenType.NUMBER) else "")
