"""Parses tokens into a tree without interpretation: a function stays a name with arguments, a literal stays as written.

`sqlglot` usually parses a query to translate it, and knows the meaning of each function in each dialect. Here the tree
mirrors the text, so that writing it gives Spark the same query again.

Operators bind as in Spark's grammar, not as in sqlglot's. One predicate (IN, LIKE, BETWEEN, IS) follows a value. A
value is made of comparisons, `|`, `^`, `&`, shifts, `+ - ||` and `* / % DIV`, from the weakest to the strongest.
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
from siltstone.model.sql_parsing import quiet
from siltstone.query.sqlglot_loader import check_source

COMMA_JOIN: Final = ","
"""Kind of a join that is written as a comma: the same as CROSS JOIN, from left to right."""
MAX_READ_AGAIN: Final = 100
"""Bound on backtracking: how often the parser may read a token again, on average. Ordinary queries stay below 5."""
INTERVAL_UNITS: Final = frozenset(
    f"{unit}{plural}"
    for unit in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
    for plural in ("", "S")
)


AS_WRITTEN: Final = frozenset({"DATE_TRUNC", "RANGE", "TRUNC"})
"""Functions whose arguments stay as written: sqlglot reads 'Y' as YEAR, and Spark does not."""


class Quantified(exp.Expression):
    """The patterns after LIKE ANY, LIKE SOME or LIKE ALL; `this` is that word."""

    arg_types = {"this": True, "expressions": True}


class Positive(exp.Unary):
    """A plus sign before a value. In Spark it converts text to a number."""


class UnsignedShift(exp.Expression, exp.Binary):
    """``a >>> b``."""


class Pivoted(exp.Expression):
    """``PIVOT (expressions FOR columns IN (values))``."""

    arg_types = {"expressions": True, "columns": True, "values": True}


class Unpivoted(exp.Expression):
    """``UNPIVOT [INCLUDE | EXCLUDE NULLS] (values FOR this IN (expressions)) AS alias``."""

    arg_types = {"this": True, "values": True, "expressions": True, "nulls": False, "alias": False}


_COMPARED, _OR, _XOR, _AND, _SHIFT, _SUM = range(6)
_OPERATORS: Final[dict[TokenType, tuple[int, type[exp.Binary]]]] = {
    TokenType.EQ: (_COMPARED, exp.EQ),
    TokenType.NEQ: (_COMPARED, exp.NEQ),
    TokenType.NULLSAFE_EQ: (_COMPARED, exp.NullSafeEQ),
    TokenType.LT: (_COMPARED, exp.LT),
    TokenType.LTE: (_COMPARED, exp.LTE),
    TokenType.GT: (_COMPARED, exp.GT),
    TokenType.GTE: (_COMPARED, exp.GTE),
    TokenType.PIPE: (_OR, exp.BitwiseOr),
    TokenType.CARET: (_XOR, exp.BitwiseXor),
    TokenType.AMP: (_AND, exp.BitwiseAnd),
    TokenType.PLUS: (_SUM, exp.Add),
    TokenType.DASH: (_SUM, exp.Sub),
    TokenType.DPIPE: (_SUM, exp.DPipe),
}
"""Operators between predicates and products, with their binding strength."""
_SHIFTS: Final[dict[tuple[TokenType, int], type[exp.Binary]]] = {
    (TokenType.LT, 2): exp.BitwiseLeftShift,
    (TokenType.GT, 2): exp.BitwiseRightShift,
    (TokenType.GT, 3): UnsignedShift,
}
"""Shift operators, by repeated sign and number of repetitions. Their tokens are adjacent."""
_PREDICATES: Final = (TokenType.BETWEEN, TokenType.IN, TokenType.LIKE, TokenType.ILIKE, TokenType.RLIKE)
_COMPARISONS: Final = tuple(made for level, made in _OPERATORS.values() if level == _COMPARED)
_QUANTIFIERS: Final = ("ANY", "SOME", "ALL")


class _BoundedParser(SparkParser):
    """Spark's grammar with bounded backtracking. The time grows with the text, not with the possible readings."""

    FUNCTIONS = {name: make for name, make in SparkParser.FUNCTIONS.items() if name not in AS_WRITTEN}
    ARRAY_CONSTRUCTORS = {}  # array(1, 2)[0] is an item of an array
    TABLE_ALIAS_TOKENS = SparkParser.TABLE_ALIAS_TOKENS - {TokenType.PIVOT, TokenType.UNPIVOT}
    UNARY_PARSERS = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: self.expression(Positive(this=self._parse_unary())),
    }

    def __init__(self) -> None:
        super().__init__(dialect=DIALECT)
        self._joining = False
        self._read_again = 0

    def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:
        """Parse an argument. It is a lambda only if names and an arrow follow, so that nothing is parsed twice."""
        if self._curr.token_type is TokenType.L_PAREN and not self._arrow_follows():
            return self._parse_select_or_expression(alias=alias)
        return super()._parse_lambda(alias=alias)

    def _parse_unary(self) -> exp.Expr | None:
        """Parse a sign and its operand. In ``-1::string`` the sign belongs to the number, not to the cast."""
        if self._curr.token_type is not TokenType.DASH:
            return super()._parse_unary()
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

    def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
        """Parse an operand of AND and OR: a value, and at most one predicate after it."""
        del parse_is
        return self._parse_predicate(self._parse_comparison())

    def _parse_comparison(self, this: exp.Expr | None = None) -> exp.Expr | None:
        return self._climb(_COMPARED, this)

    def _parse_range(self, this: exp.Expr | None = None, parse_is: bool = False) -> exp.Expr | None:
        del parse_is
        return self._parse_predicate(self._climb(_OR, this))

    def _parse_bitwise(self) -> exp.Expr | None:
        return self._climb(_OR)

    def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
        return self._climb(_SUM) if parse_mod else super()._parse_term(parse_mod=parse_mod)

    def _climb(self, weakest: int, this: exp.Expr | None = None) -> exp.Expr | None:
        """Parse values and the operators between them that bind at least as strongly as `weakest`, from the left."""
        this = this or self._parse_factor()
        while this is not None and (operator := self._operator()) is not None and operator[0] >= weakest:
            level, made, width = operator
            self._advance(width)
            right = self._climb(level + 1)
            this = self.expression(made(this=this, expression=right))
            if made is exp.DPipe:
                this.set("safe", not self.dialect.STRICT_STRING_CONCAT)
        return this

    def _operator(self) -> tuple[int, type[exp.Binary], int] | None:
        """Return the next operator: its binding strength, its node and its number of tokens."""
        kind = self._curr.token_type
        if kind in (TokenType.LT, TokenType.GT):
            width = 1
            while self._is_joined(width, kind):
                width += 1
            if width > 1:
                made = _SHIFTS.get((kind, width))
                return None if made is None else (_SHIFT, made, width)
        operator = _OPERATORS.get(kind)
        return None if operator is None else (*operator, 1)

    def _is_joined(self, ahead: int, kind: TokenType) -> bool:
        """True if the token at that distance is of this kind and directly follows the one before it."""
        at = self._index + ahead
        if at >= len(self._tokens) or self._tokens[at].token_type is not kind:
            return False
        return self._tokens[at - 1].end + 1 == self._tokens[at].start

    def _parse_predicate(self, this: exp.Expr | None) -> exp.Expr | None:
        """Parse IN, LIKE, BETWEEN or IS and its operands, if one follows."""
        if this is None:
            return None
        if self._match(TokenType.IS):
            return self._parse_is(this)
        negated = self._curr.token_type is TokenType.NOT and self._next.token_type in _PREDICATES
        if negated:
            self._advance()
        if not self._match_set(_PREDICATES):
            return this
        read: exp.Expr | None
        match self._prev.token_type:
            case TokenType.IN:
                read = self._parse_in(this)
            case TokenType.BETWEEN:
                low = self._parse_comparison()
                if not self._match(TokenType.AND):
                    self.raise_error("Expected AND")
                read = self.expression(exp.Between(this=this, low=low, high=self._parse_comparison()))
            case TokenType.RLIKE:
                read = self.expression(exp.RegexpLike(this=this, expression=self._parse_comparison()))
            case kind:
                like = exp.Like if kind is TokenType.LIKE else exp.ILike
                patterns = self._parse_quantified()
                read = self.expression(like(this=this, expression=patterns or self._parse_comparison()))
                read = read if patterns else self._parse_escape(read)
        return self._negate_range(read) if negated else read

    def _parse_quantified(self) -> exp.Expr | None:
        """Parse ANY, SOME or ALL and the patterns after it."""
        if self._curr.text.upper() not in _QUANTIFIERS or self._curr.token_type is TokenType.IDENTIFIER:
            return None
        if self._next.token_type is not TokenType.L_PAREN:
            return None
        self._advance()
        word = self._prev.text.upper()
        return self.expression(
            Quantified(this=word, expressions=self._parse_wrapped_csv(self._parse_disjunction)), self._prev
        )

    def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
        """Parse the operand of IS.

        A comparison beside DISTINCT FROM gets parentheses, because ``<=>`` is a comparison itself.
        """
        negated = self._match(TokenType.NOT)
        if self._match(TokenType.DISTINCT):
            if not self._match(TokenType.FROM):
                self.raise_error("Expected FROM")
            made: type[exp.Binary] = exp.NullSafeEQ if negated else exp.NullSafeNEQ
            operands = (this, self._parse_comparison())
            left, right = (exp.Paren(this=side) if isinstance(side, _COMPARISONS) else side for side in operands)
            return self.expression(made(this=left, expression=right))
        if not self._match_set((TokenType.NULL, TokenType.TRUE, TokenType.FALSE)):
            self.raise_error("Expected NULL, TRUE, FALSE or DISTINCT FROM")
        kind = self._prev.token_type
        value: exp.Expr = exp.Null() if kind is TokenType.NULL else exp.Boolean(this=kind is TokenType.TRUE)
        read = self.expression(exp.Is(this=this, expression=value))
        return self.expression(exp.Not(this=read)) if negated else read

    def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
        """Parse GROUP BY: ALL, or terms and at most one of WITH ROLLUP, WITH CUBE and GROUPING SETS after them."""
        if not skip_group_by_token and not self._match(TokenType.GROUP_BY):
            return None
        if self._match(TokenType.ALL):
            return self.expression(exp.Group(all=True))
        group = exp.Group(expressions=self._parse_csv(self._parse_grouped))
        if self._match(TokenType.WITH):
            made = self._parse_cube_or_rollup(with_prefix=True)
            if made is None:
                self.raise_error("Expected ROLLUP or CUBE")
            else:
                group.set(made.key, [made])
        elif (sets := self._parse_grouping_sets()) is not None:
            group.set("grouping_sets", [sets])
        return self.expression(group)

    def _parse_grouped(self) -> exp.Expr | None:
        return self._parse_grouping_sets() or self._parse_cube_or_rollup() or self._parse_disjunction()

    def _parse_pivots(self) -> list[Any] | None:
        """Parse PIVOT or UNPIVOT after a table, by Spark's grammar."""
        if not self._match_set((TokenType.PIVOT, TokenType.UNPIVOT)):
            return None
        unpivot = self._prev.token_type is TokenType.UNPIVOT
        nulls = self._prev.text.upper() if unpivot and self._match_texts(("INCLUDE", "EXCLUDE")) else None
        if nulls is not None and not self._match_text_seq("NULLS"):
            self.raise_error("Expected NULLS")
        self._match_l_paren()
        self._mark_for()
        first = self._parse_names() if unpivot else self._parse_csv(self._parse_expression)
        if not self._match(TokenType.FOR):
            self.raise_error("Expected FOR")
        names = self._parse_names()
        if not self._match(TokenType.IN):
            self.raise_error("Expected IN")
        values = self._parse_wrapped_csv(self._parse_expression)
        self._match_r_paren()
        if not unpivot:
            if self._curr.token_type in (TokenType.ALIAS, TokenType.VAR, TokenType.IDENTIFIER):
                self.raise_error("PIVOT has no alias")
            return [self.expression(Pivoted(expressions=first, columns=names, values=values))]
        if len(names) != 1:
            self.raise_error("Expected one name")
        alias = self._parse_table_alias()
        return [self.expression(Unpivoted(this=names[0], values=first, expressions=values, nulls=nulls, alias=alias))]

    def _mark_for(self) -> None:
        """Make the word FOR of a PIVOT a keyword. Elsewhere it is a name, and here it would be read as an alias."""
        depth = 0
        for at in range(self._index, len(self._tokens)):
            token = self._tokens[at]
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if depth == 0 and token.token_type is TokenType.VAR and token.text.upper() == "FOR":
                self._tokens[at] = Token(TokenType.FOR, token.text, token.line, token.col, token.start, token.end)
                self._advance(0)
                return

    def _parse_names(self) -> list[exp.Expr]:
        """Parse a name, or several in parentheses."""
        wrapped = self._match(TokenType.L_PAREN, advance=False)
        names = self._parse_wrapped_csv(self._parse_id_var) if wrapped else [self._parse_id_var()]
        return [name for name in names if name is not None]

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
        """Parse a parameter, and record its position."""
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
        """Parse joins. Joins of a joined table need parentheses, otherwise the parser would try every grouping."""
        return iter(()) if self._joining else super()._parse_joins(*args, **named)

    def _parse_table(self, *args: Any, **named: Any) -> exp.Expr | None:  # noqa: ANN401
        before, self._joining = self._joining, False
        try:
            return super()._parse_table(*args, **named)
        finally:
            self._joining = before

    def _retreat(self, index: int) -> None:
        """Backtrack, with a bound, because some texts have too many possible readings."""
        self._read_again += max(0, self._index - index)
        if self._read_again > MAX_READ_AGAIN * (len(self._tokens) + 100):
            raise InvalidRequest("The query is too complicated to be read. Split it, with WITH or in several queries.")
        super()._retreat(index)


class _PlainParser(_BoundedParser):
    """Spark's grammar for one SELECT, without function signatures, other statements and other dialects."""

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
        """Parse INTERVAL, a string or a number, and units."""
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
        """Parse the arguments of a function that may have words between them instead of commas."""
        arguments = [self._parse_bitwise()]
        if not self._match(TokenType.COMMA, advance=False):
            arguments += [self._parse_bitwise() for word in words if self._match_text_seq(word)]
        return self._call(name, [*arguments, *self._further_arguments()])

    def _further_arguments(self) -> list[exp.Expr | None]:
        return self._parse_csv(self._parse_disjunction) if self._match(TokenType.COMMA) else []

    def _call(self, name: str, arguments: list[exp.Expr | None]) -> exp.Anonymous:
        return self.expression(
            exp.Anonymous(this=name, expressions=[value for value in arguments if value is not None])
        )


_AFTER_INTERVAL: Final = frozenset({TokenType.STRING, TokenType.NUMBER, TokenType.DASH, TokenType.PLUS})
DIALECT: Final = Spark()


def parse_plain(tokens: list[Token], text: str) -> exp.Expr | None:
    """Return the tree of one statement, as a mirror of its text.

    Raises:
        sqlglot.errors.ParseError: it cannot be parsed; the error has the position.
        RecursionError: it is nested too deeply.
    """
    return _parse_statement(_PlainParser, tokens, text)


def parse_typed(tokens: list[Token], text: str) -> exp.Expr | None:
    """Return the tree of one statement with sqlglot's knowledge of Spark's functions, for translation.

    Errors are those of `parse_plain`.
    """
    return _parse_statement(_BoundedParser, [part for token in tokens for part in _without_suffix(token)], text)


def _without_suffix(token: Token) -> list[Token]:
    """Rewrite a number with a type suffix, as ``3L``, as a cast, which sqlglot understands."""
    number = _SUFFIXED.fullmatch(token.text) if token.token_type is TokenType.NUMBER else None
    if number is None:
        return [token]
    parts = ((TokenType.NUMBER, number[1]), (TokenType.DCOLON, "::"), (_SUFFIXES[number[2].upper()], number[2]))
    return [Token(kind, text, token.line, token.col, token.start, token.end) for kind, text in parts]


def _parse_statement(parser: type[_BoundedParser], tokens: list[Token], text: str) -> exp.Expr | None:
    check_source()
    with quiet():
        parsed = parser().parse(tokens, text)
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
