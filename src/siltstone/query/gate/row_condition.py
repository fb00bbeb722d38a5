"""Admits conditions on one row, as after WHERE, with the words, functions and types of a query.

The text passes the gate like a query, and Spark gets the rewritten text.
"""

from collections.abc import Collection
from typing import Final, NoReturn

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from siltstone.errors import InvalidRequest
from siltstone.query.gate.admit import PARSER_ERRORS
from siltstone.query.gate.allowlist import FUNCTIONS_BY_GROUP, GENERATORS
from siltstone.query.gate.parser import parse_plain
from siltstone.query.gate.round_trip import check_round_trip
from siltstone.query.gate.sql_writer import SqlWriter
from siltstone.query.gate.syntax import check_syntax, position_suffix
from siltstone.query.gate.tokenizer import tokenize
from siltstone.query.gate.tree_comparison import check_same

MAX_CONDITION_CHARS: Final = 10_000
_NOT_IN_ONE_ROW: Final = (
    exp.Alias,
    exp.Query,
    exp.Exists,
    exp.Window,
    exp.WithinGroup,
    exp.Filter,
    exp.Placeholder,
    exp.Star,
)
_MANY_ROW_FUNCTIONS: Final = GENERATORS.union(
    *(FUNCTIONS_BY_GROUP[group].split() for group in ("Aggregates", "Windows"))
)
_RANDOM_FUNCTIONS: Final = frozenset(FUNCTIONS_BY_GROUP["Chance"].split())
_BEFORE: Final = "SELECT 1 FROM t WHERE ("


def condition_of(text: str, columns: Collection[str]) -> str:
    """Return a condition as Spark is to get it, if one row alone decides it.

    >>> condition_of("city = 'Bern' AND n>3", ["city", "n"])
    "`city` = 'Bern' AND `n` > 3"

    Raises:
        InvalidRequest: it cannot be parsed, is not allowed in a query, needs more than one row, or names an unknown
            column.
    """
    tokens, condition = _read(text)
    for node in condition.walk():
        function = node.name.lower() if isinstance(node, exp.Anonymous) else ""
        if isinstance(node, _NOT_IN_ONE_ROW) or function in _MANY_ROW_FUNCTIONS:
            raise _not_of_one_row(node)
        if function in _RANDOM_FUNCTIONS:
            raise InvalidRequest(
                f"A condition must give the same answer each time. {node.name}{position_suffix(node)} does not."
            )
    existing = frozenset(name.lower() for name in columns)
    named = [column.parts[0].name for column in condition.find_all(exp.Column)]  # further parts are fields of a struct
    for name in named:
        if name.lower() not in existing:
            raise InvalidRequest(f"There is no column {name!r}; there are {', '.join(columns)}.")
    if not named:
        raise InvalidRequest("A condition names at least one column; this one would be the same for every row.")
    check_syntax(condition, columns=existing)
    written = SqlWriter(table=_no_table, common_table=_no_table).write(condition)
    written_tokens = tokenize(written)
    check_round_trip(tokens, written_tokens, ())
    check_same(condition, _inside(written_tokens, written), table=_no_table)
    return written


def named_columns(text: str) -> set[str]:
    """Return the columns that a condition names, as they are written in it."""
    return {column.parts[0].name for column in _read(text)[1].find_all(exp.Column)}


def _read(text: str) -> tuple[list[Token], exp.Expr]:
    """Return the tokens of a condition and its tree."""
    tokens: list[Token] = []
    try:
        tokens = tokenize(text) if len(text) <= MAX_CONDITION_CHARS else []
        condition = _inside(tokens, text) if tokens else None
    except InvalidRequest as error:
        raise InvalidRequest(f"The condition cannot be read. {error}") from error
    except (*PARSER_ERRORS, RecursionError):
        condition = None
    if condition is None:
        raise InvalidRequest(
            "The condition cannot be read. Write one expression, as after WHERE: city = 'Bern' AND n > 3."
        )
    return tokens, condition


def _inside(tokens: list[Token], text: str) -> exp.Expr | None:
    """Return the tree inside the parentheses of a WHERE; None if the text does not stay inside them."""
    closing = Token(TokenType.R_PAREN, ")", tokens[-1].line, tokens[-1].col)
    select = parse_plain([*tokenize(_BEFORE), *tokens, closing], text)
    parts = {name for name, part in select.args.items() if part} if isinstance(select, exp.Select) else set()
    if parts != {"expressions", "from_", "where"} or not isinstance(select, exp.Select):
        return None
    where: exp.Expr = select.args["where"].this
    return where.this if isinstance(where, exp.Paren) and "joins" not in select.args["from_"].this.args else None


def _no_table(node: exp.Expr) -> NoReturn:
    raise _not_of_one_row(node)


def _not_of_one_row(node: exp.Expr) -> InvalidRequest:
    shown = node.name if isinstance(node, exp.Anonymous) else node.key.upper()
    return InvalidRequest(f"A condition is about one row. {shown}{position_suffix(node)} cannot be in it.")
