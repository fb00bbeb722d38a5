"""Tokens to a tree, with nothing interpreted: a function stays a name with arguments, a literal stays as it was written.

`sqlglot` usually reads a query in order to say it in another dialect, and knows what each function means there. Here the
tree is a picture of the text, so that printing it gives Spark the same question again.
"""

# ruff: noqa: RUF012, FBT001, FBT002, FBT003 - the tables and signatures are those of the parser that is narrowed here
import re
from collections.abc import Iterator
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from siltstone.errors import InvalidRequest
from siltstone.model.parsing import quiet

COMMA_JOIN: Final = ","
"""The kind of a join that is written as a comma: the same as CROSS JOIN, from left to right."""
MAX_READ_AGAIN: Final = 100
"""How often the parser may read a token again, on average; ordinary queries stay below 5."""
INTERVAL_UNITS: Final = frozenset(
    f"{unit}{plural}"
    for unit in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
    for plural in ("", "S")
)


AS_WRITTEN: Final = frozenset({"DATE_TRUNC", "TRUNC"})
"""Functions whose arguments stay as they are: the parser takes 'Y' for YEAR, and Spark does not."""


class _BoundedParser(SparkParser):
    """Spark's grammar, read in a time that grows with the text and not with the ways to read it."""

    FUNCTIONS = {name: make for name, make in SparkParser.FUNCTIONS.items() if name not in AS_WRITTEN}
    ARRAY_CONSTRUCTORS = {}  # array(1, 2)[0] is an item of an array

    def __init__(self) -> None:
        super().__init__(dialect=_DIALECT)
        self._joining = False
        self._read_again = 0

    def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:
        """Read an argument; only where names and an arrow follow is it a lambda, so that nothing is read twice."""
        if self._curr.token_type is TokenType.L_PAREN and not self._arrow_follows():
            return self._parse_select_or_expression(alias=alias)
        return super()._parse_lambda(alias=alias)

    def _parse_unary(self) -> exp.Expr | None:
        """Read a sign and what it belongs to: before a number that is cast, as in ``-1::string``, to the number."""
        kinds = [token.token_type for token in self._tokens[self._index : self._index + 3]]
        if kinds != [TokenType.DASH, TokenType.NUMBER, TokenType.DCOLON]:
            return super()._parse_unary()
        self._advance()
        read = super()._parse_unary()
        number = read
        while isinstance(number, exp.Cast):
            number = number.this
        if isinstance(number, exp.Literal):
            number.replace(exp.Neg(this=number.copy()))
        return read

    def _arrow_follows(self) -> bool:
        at = self._index + 1
        while at < len(self._tokens) and self._tokens[at].token_type in (
            TokenType.VAR,
            TokenType.IDENTIFIER,
            TokenType.COMMA,
        ):
            at += 1
        after = [token.token_type for token in self._tokens[at : at + 2]]
        return after == [TokenType.R_PAREN, TokenType.ARROW]

    def _parse_placed_parameter(self) -> exp.Expr | None:
        """Read a parameter, and remember where it stands."""
        colon = self._prev
        read = SparkParser.PLACEHOLDER_PARSERS[TokenType.COLON]
        node: exp.Expr | None = read(self)  # type: ignore[no-untyped-call, unused-ignore]
        return node.update_positions(colon) if node is not None else None

    def _parse_join(self, *args: Any, **named: Any) -> exp.Join | None:  # noqa: ANN401
        before, self._joining = self._joining, True
        try:
            return super()._parse_join(*args, **named)
        finally:
            self._joining = before

    def _parse_joins(self, *args: Any, **named: Any) -> Iterator[exp.Join]:  # noqa: ANN401
        """Read joins; those of a joined table belong into parentheses, or each would be tried in every way there is."""
        return iter(()) if self._joining else super()._parse_joins(*args, **named)

    def _parse_table(self, *args: Any, **named: Any) -> exp.Expr | None:  # noqa: ANN401
        before, self._joining = self._joining, False
        try:
            return super()._parse_table(*args, **named)
        finally:
            self._joining = before

    def _retreat(self, index: int) -> None:
        """Go back, but not for ever: some texts could be read in more ways than there is time for."""
        self._read_again += max(0, self._index - index)
        if self._read_again > MAX_READ_AGAIN * (len(self._tokens) + 100):
            raise InvalidRequest("The query is too complicated to be read. Split it, with WITH or in several queries.")
        super()._retreat(index)


class _PlainParser(_BoundedParser):
    """Spark's grammar for one SELECT, without what it knows of functions, statements and other dialects."""

    ADD_JOIN_ON_TRUE = False
    STRICT_CAST = True
    FUNCTIONS = {}
    FUNCTION_PARSERS = {
        "CAST": lambda self: self._parse_cast(True),
        "TRY_CAST": lambda self: self._parse_cast(False, safe=True),
        "EXTRACT": lambda self: self._parse_extract(),
        "TRIM": lambda self: self._parse_plain_trim(),
        "SUBSTRING": lambda self: self._parse_worded("substring", "FROM", "FOR"),
        "SUBSTR": lambda self: self._parse_worded("substr", "FROM", "FOR"),
        "OVERLAY": lambda self: self._parse_worded("overlay", "PLACING", "FROM", "FOR"),
        "POSITION": lambda self: self._parse_plain_position(),
    }
    NO_PAREN_FUNCTION_PARSERS = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}
    NO_PAREN_FUNCTIONS = {
        TokenType.CURRENT_DATE: lambda: exp.Anonymous(this="current_date"),
        TokenType.CURRENT_TIMESTAMP: lambda: exp.Anonymous(this="current_timestamp"),
    }
    STATEMENT_PARSERS = {}
    PROPERTY_PARSERS = {}
    QUERY_MODIFIER_PARSERS = {
        token: SparkParser.QUERY_MODIFIER_PARSERS[token]
        for token in (
            TokenType.WHERE,
            TokenType.GROUP_BY,
            TokenType.HAVING,
            TokenType.QUALIFY,
            TokenType.WINDOW,
            TokenType.ORDER_BY,
            TokenType.LIMIT,
            TokenType.OFFSET,
        )
    }
    QUERY_MODIFIER_TOKENS = set(QUERY_MODIFIER_PARSERS)
    PLACEHOLDER_PARSERS = {TokenType.COLON: lambda self: self._parse_placed_parameter()}
    COLUMN_OPERATORS = {token: SparkParser.COLUMN_OPERATORS[token] for token in (TokenType.DOT, TokenType.DCOLON)}
    LAMBDAS = {TokenType.ARROW: SparkParser.LAMBDAS[TokenType.ARROW]}
    TYPE_LITERAL_PARSERS = {}
    VERSION_PHRASES = {}
    JOIN_HINTS = set()

    def _parse_join(self, *args: Any, **named: Any) -> exp.Join | None:  # noqa: ANN401
        comma = self._curr.token_type is TokenType.COMMA
        join = super()._parse_join(*args, **named)
        if comma and join is not None:
            join.set("kind", COMMA_JOIN)
        return join

    def _parse_interval(self, require_interval: bool = True, parse_function_unit: bool = True) -> exp.Interval | None:
        """Read INTERVAL, a string or a number, and units."""
        del parse_function_unit
        index = self._index
        if not self._match(TokenType.INTERVAL) or not require_interval:
            return None
        this = self._parse_unary() if self._curr.token_type in _AFTER_INTERVAL else None
        unit = self._interval_unit()
        if this is None or (unit is None and not (isinstance(this, exp.Literal) and this.is_string)):
            self._retreat(index)
            return None
        span = unit is not None and self._match_text_seq("TO")
        units = exp.IntervalSpan(this=unit, expression=self._interval_unit()) if span else unit
        return self.expression(exp.Interval(this=this, unit=units))

    def _interval_unit(self) -> exp.Var | None:
        if self._curr.token_type is TokenType.VAR and self._curr.text.upper() in INTERVAL_UNITS:
            self._advance()
            return exp.var(self._prev.text.upper())
        return None

    def _parse_plain_trim(self) -> exp.Expr:
        position = self._prev.text.upper() if self._match_texts(self.TRIM_TYPES) else None
        first = None if self._match(TokenType.FROM, advance=False) else self._parse_bitwise()
        if self._match(TokenType.FROM):
            return self.expression(exp.Trim(this=self._parse_bitwise(), expression=first, position=position))
        if position is not None:
            self.raise_error("Expected FROM")
        return self._call("trim", [first, *self._further_arguments()])

    def _parse_plain_position(self) -> exp.Expr:
        first = self._parse_bitwise()
        if self._match(TokenType.IN):
            return self._call("position", [first, self._parse_bitwise()])
        return self._call("position", [first, *self._further_arguments()])

    def _parse_worded(self, name: str, *words: str) -> exp.Expr:
        """Read the arguments of a function that may have words between them instead of commas."""
        found = [self._parse_bitwise()]
        if not self._match(TokenType.COMMA, advance=False):
            found += [self._parse_bitwise() for word in words if self._match_text_seq(word)]
        return self._call(name, [*found, *self._further_arguments()])

    def _further_arguments(self) -> list[exp.Expr | None]:
        return self._parse_csv(self._parse_disjunction) if self._match(TokenType.COMMA) else []

    def _call(self, name: str, arguments: list[exp.Expr | None]) -> exp.Anonymous:
        return self.expression(exp.Anonymous(this=name, expressions=[one for one in arguments if one is not None]))


_AFTER_INTERVAL: Final = frozenset({TokenType.STRING, TokenType.NUMBER, TokenType.DASH, TokenType.PLUS})
_DIALECT: Final = Spark()


def tree_of(tokens: list[Token], text: str) -> exp.Expr | None:
    """Return the tree of one statement, as a picture of its text.

    Raises:
        sqlglot.errors.ParseError: it cannot be read; the error names the place.
        RecursionError: it is nested too deeply.
    """
    return _one(_PlainParser(), tokens, text)


def known_tree_of(tokens: list[Token], text: str) -> exp.Expr | None:
    """Return the tree of one statement with all that the parser knows of Spark's functions, to be said in another dialect.

    Raises:
        sqlglot.errors.ParseError: it cannot be read.
        RecursionError: it is nested too deeply.
    """
    return _one(_BoundedParser(), [part for token in tokens for part in _without_suffix(token)], text)


def _without_suffix(token: Token) -> list[Token]:
    """Return a number of a type of its own, as ``3L``, in the way that the parser knows: as a cast."""
    number = _SUFFIXED.fullmatch(token.text) if token.token_type is TokenType.NUMBER else None
    if number is None:
        return [token]
    parts = ((TokenType.NUMBER, number[1]), (TokenType.DCOLON, "::"), (_SUFFIXES[number[2].upper()], number[2]))
    return [Token(kind, text, token.line, token.col, token.start, token.end) for kind, text in parts]


def _one(parser: SparkParser, tokens: list[Token], text: str) -> exp.Expr | None:
    with quiet():
        parsed = parser.parse(tokens, text)
    if len(parsed) != 1:
        raise ParseError("several statements")
    return parsed[0]


_SUFFIXED: Final = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(BD|[LSYDF])", re.IGNORECASE | re.ASCII)
_SUFFIXES: Final = {
    "L": TokenType.BIGINT,
    "S": TokenType.SMALLINT,
    "Y": TokenType.TINYINT,
    "D": TokenType.DOUBLE,
    "F": TokenType.FLOAT,
    "BD": TokenType.DECIMAL,
}
