"""Entry point of the gate: admits exactly one SELECT, made of allowed syntax, over datasets of the lake.

`siltstone.query.gate` shows the steps. Two more rules hold:

* Every table is a common table expression that is visible there, or the name of a dataset.
* Every parameter has a value of a type that can be bound.

Spark gets the rewritten text, never the user's characters, so the checked query is the one that runs. In that text,
datasets and common table expressions have unguessable names. So no name in it means anything else to the engine.
"""

import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from siltstone.errors import InvalidRequest
from siltstone.model.names import PARTS
from siltstone.query.gate.checked_query import CheckedQuery, Source
from siltstone.query.gate.parameters import check_parameters, literal
from siltstone.query.gate.parser import parse_plain, parse_typed
from siltstone.query.gate.round_trip import check_round_trip
from siltstone.query.gate.sql_writer import SqlWriter, quoted
from siltstone.query.gate.syntax import check_syntax, position_of, position_suffix
from siltstone.query.gate.tokenizer import tokenize
from siltstone.query.gate.tree_comparison import check_same, decides_alike

MAX_QUERY_CHARS: Final = 100_000
MAX_QUERY_TOKENS: Final = 25_000
"""Most words, names, values and signs of a query. Parsing takes about 0.1 ms for each."""
CACHED_CHARS: Final = 2_000_000
"""Bound on the admission cache, in characters of its query texts. Their trees take some hundred times as many bytes."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_FIRST_TOKENS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN)
PARSER_ERRORS: Final = (SqlglotError, AttributeError, AssertionError, IndexError, KeyError, TypeError, ValueError)
"""Errors of the parser for text that it cannot parse: its error classes, and internal errors on odd texts."""


def admit(
    text: str,
    *,
    parameters: Mapping[str, object] | None = None,
    catalog: str | None = None,
    schema: str | None = None,
) -> CheckedQuery:
    """Return the query if it may run: one SELECT over datasets, with a value for each of its placeholders.

    Args:
        text: one SELECT in Spark's dialect.
        parameters: the value of each ``:name`` in it.
        catalog: the default catalog of tables.
        schema: the default schema of tables.

    Raises:
        InvalidRequest: it may not run; the message has the reason and the position.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"A query is text, not {type(text).__name__}.")
    query = _admissions.get(text, catalog, schema)
    return replace(query, parameters=check_parameters(query.placeholders, parameters or {}))


def spark_text(admitted: CheckedQuery, views: Mapping[Source, str], *, common: Callable[[int], str]) -> str:
    """Return the text for Spark, which reads each dataset from its view.

    Args:
        admitted: the query.
        views: the view of each of its references.
        common: returns the name of its n-th common table expression.
    """
    names: dict[int, str] = {}

    def of_common_table(cte: exp.CTE) -> str:
        return names.setdefault(id(cte), common(len(names)))

    def of_table(table: exp.Table) -> str:
        cte = common_table(table)
        if cte is not None:
            return quoted(of_common_table(cte))
        return quoted(views[source_of(admitted, table)])

    writer = SqlWriter(
        table=of_table,
        common_table=of_common_table,
        parameter=lambda name: literal(admitted.parameters[name]),
        comma=" CROSS JOIN",
        datasets=frozenset(source.path for source in admitted.references),
    )
    return writer.write(admitted.checked)


def source_of(admitted: CheckedQuery, table: exp.Table) -> Source:
    """Return the dataset that a table of an admitted query names; it is not a common table expression."""
    return _source(table, admitted.catalog, admitted.schema)


class _AdmissionCache:
    """LRU cache of checked queries without parameter values, by text and default catalog and schema. Thread-safe."""

    def __init__(self) -> None:
        self._admissions: OrderedDict[tuple[str, str | None, str | None], CheckedQuery] = OrderedDict()
        self._chars = 0
        self._mutex = threading.Lock()

    def get(self, text: str, catalog: str | None, schema: str | None) -> CheckedQuery:
        """Return a checked query; parse and check its text if it is not in the cache."""
        key = (text, catalog, schema)
        with self._mutex:
            cached = self._admissions.get(key)
            if cached is not None:
                self._admissions.move_to_end(key)
                return cached
        try:
            admission = _parse_and_check(text, catalog, schema)
        except RecursionError:
            raise InvalidRequest("The query is nested too deeply. Split it, with WITH or in several queries.") from None
        with self._mutex:
            self._chars += len(text) if key not in self._admissions else 0
            self._admissions[key] = admission
            while self._chars > CACHED_CHARS:
                (evicted, _, _), _ = self._admissions.popitem(last=False)
                self._chars -= len(evicted)
        return admission


_admissions: Final = _AdmissionCache()


def _parse_and_check(text: str, catalog: str | None, schema: str | None) -> CheckedQuery:
    tokens, checked = _one_select(text)

    def path_of(table: exp.Table) -> tuple[str, ...]:
        return (table.name,) if common_table(table) is not None else _source(table, catalog, schema).path

    def of_table(table: exp.Table) -> str:
        return ".".join(map(quoted, path_of(table)))

    tables = [table for table in checked.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    tables.sort(key=lambda table: table.parts[0].meta.get("start", 0))
    named = [_source(table, catalog, schema) for table in tables if common_table(table) is None]
    datasets = frozenset(source.path for source in named)
    syntax = check_syntax(checked)
    normalised = SqlWriter(table=of_table, common_table=_common_name, datasets=datasets).write(checked)
    written = tokenize(normalised)
    check_round_trip(tokens, written, frozenset(itertools.chain.from_iterable(datasets)))
    plain = _query_of(parse_plain, written, normalised)
    check_same(checked, plain, table=path_of, datasets=datasets)
    try:
        typed = _query_of(parse_typed, written, normalised)
    except InvalidRequest:
        typed = plain
    return CheckedQuery(
        normalised=normalised,
        tree=typed if decides_alike(typed, plain) else plain,  # sqlglot's meaning of a function may differ from Spark's
        checked=checked,
        references=tuple(dict.fromkeys(named)),
        placeholders=syntax.parameters,
        functions=frozenset(syntax.functions),
        volatile=frozenset(syntax.volatile),
        catalog=catalog,
        schema=schema,
    )


def _one_select(text: str) -> tuple[list[Token], exp.Query]:
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"A query has at most {MAX_QUERY_CHARS:,} characters, this one has {len(text):,}.")
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        raise InvalidRequest(
            f"Character {surrogate.start() + 1:,} of the query is an unpaired surrogate. Remove it: no text can hold it."
        )
    tokens = tokenize(text)
    if not tokens:
        raise InvalidRequest("A query must be exactly one SELECT; this text has none.")
    if len(tokens) > MAX_QUERY_TOKENS:
        raise InvalidRequest(
            f"A query has at most {MAX_QUERY_TOKENS:,} words, names, values and signs, this one has {len(tokens):,}. Split it, "
            "or bind long lists as parameters."
        )
    if tokens[0].token_type not in _FIRST_TOKENS:
        raise InvalidRequest(f"A query must be exactly one SELECT; this text begins with {tokens[0].text[:40]!r}.")
    return tokens, _query_of(parse_plain, tokens, text)


def _query_of(parse: Callable[[list[Token], str], exp.Expr | None], tokens: list[Token], text: str) -> exp.Query:
    try:
        tree = parse(list(tokens), text)
    except PARSER_ERRORS as error:
        raise InvalidRequest(f"The query cannot be read{_error_position(error)}.") from error
    if not isinstance(tree, exp.Query):
        raise InvalidRequest("A query must be exactly one SELECT.")
    return tree


def _error_position(error: Exception) -> str:
    """Return the position where the parser stopped. Its messages are about its own classes, so they are not used."""
    if not isinstance(error, ParseError) or not error.errors:
        return ": it has words in an order that no SELECT has"
    first = error.errors[0]
    at = f" at line {first['line']}, column {first['col']}"
    return f"{at}, near {first['highlight'][:40]!r}" if first["highlight"] else at


def _source(table: exp.Table, catalog: str | None, schema: str | None) -> Source:
    """Return the dataset of a table, with the default catalog and schema."""
    names = [part.name for part in table.parts]
    if len(names) == PARTS - 1 and catalog is not None:
        names = [catalog, *names]
    elif len(names) == 1 and catalog is not None and schema is not None:
        names = [catalog, schema, *names]
    shown = ".".join(names)
    if len(names) != PARTS:
        raise InvalidRequest(
            f"{shown}{position_suffix(table)} is neither a dataset nor a common table expression that is visible there. A "
            "dataset has three parts, catalog.schema.table, or two or one with a default catalog and schema."
        )
    try:
        return Source.parse(*names)
    except InvalidRequest as error:
        raise InvalidRequest(f"{shown}{position_suffix(table)} is not a dataset. {error}") from error


def _common_name(cte: exp.CTE) -> str:
    """Return the name of a common table expression, if all engines compare that name in the same way."""
    name = cte.alias
    if not name.isascii():
        raise InvalidRequest(
            f"The name {name!r}{position_suffix(cte)} of a common table expression has letters beyond ASCII."
        )
    return name


def common_table(table: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table's name means in its place, if there is one.

    It is visible in the query of its WITH and in the expressions after it. In itself it is visible only if it is
    recursive.
    """
    if len(table.parts) != 1 or not table.name.isascii():
        return None
    name = table.name.lower()
    node: exp.Expr = table
    while (parent := node.parent) is not None:
        with_: exp.With | None = parent if isinstance(parent, exp.With) else parent.args.get("with_")
        if with_ is not None and with_ is not node:
            at = _positions(with_).get(name)
            if at is not None and (with_ is not parent or at < (node.index or 0) + bool(with_.args.get("recursive"))):
                cte: exp.CTE = with_.expressions[at]
                return cte
        node = parent
    return None


_POSITIONS: Final = "siltstone_positions"


def _positions(with_: exp.With) -> dict[str, int]:
    """Return the position of each common table expression of a WITH, by its name in lower case. The result is cached."""
    positions: dict[str, int] | None = with_.meta.get(_POSITIONS)
    if positions is None:
        positions = {}
        for number, cte in enumerate(with_.expressions):
            name = _common_name(cte).lower()
            if name in positions:
                raise InvalidRequest(
                    f"WITH has two expressions named {cte.alias}; the second is at {position_of(cte)}."
                )
            positions[name] = number
        with_.meta[_POSITIONS] = positions
    return positions


def expanded_tables(query: exp.Query) -> int:
    """Return the number of tables that a query reads after each common table expression is inlined.

    An engine that inlines them plans in time proportional to this number, which may double with every expression.
    """
    reads: dict[int, list[exp.Query | None]] = {}  # by query: its tables
    counted: dict[int, int] = {}
    waiting: list[exp.Query] = [query]
    while waiting:  # a loop, because a chain of expressions may exceed the recursion limit
        node = waiting[-1]
        if id(node) not in reads:
            ctes = [
                common_table(part)
                for part in node.walk(prune=lambda part: isinstance(part, exp.With))
                if isinstance(part, exp.Table) and isinstance(part.this, exp.Identifier)
            ]
            reads[id(node)] = [None if cte is None else cte.this for cte in ctes]
            waiting += [inner for inner in reads[id(node)] if inner is not None and id(inner) not in reads]
        else:
            waiting.pop()
            tables = (1 if inner is None else counted.get(id(inner), 1) for inner in reads[id(node)])
            counted.setdefault(id(node), sum(tables))
    return counted[id(query)]
