"""Entry point of the gate: admits exactly one SELECT, made of allowed syntax, over datasets of the lake.

`siltstone.query.gate` shows the steps. Two more rules hold:

* Every table is a common table expression that is visible there, or the name of a dataset.
* Every parameter has a value of a type that can be bound.

Spark gets the rewritten text, never the user's characters, so the checked query is the one that runs. In that text,
datasets and common table expressions have unguessable names. So no name in it means anything else to the engine.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from siltstone.query.gate.syntax import check_syntax, located, place_of
from siltstone.query.gate.tokenizer import TextPosition, tokenize
from siltstone.query.gate.tree_comparison import check_same, decides_alike

MAX_QUERY_CHARS: Final = 100_000
MAX_QUERY_TOKENS: Final = 25_000
"""Most words, names, values and signs of a query. Parsing takes about 0.1 ms for each."""
CACHED_CHARS: Final = 2_000_000
"""Bound on the admission cache, in characters of its query texts. Their trees take some hundred times as many bytes."""
_BEGINS: Final = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.L_PAREN)
PARSER_ERRORS: Final = (SqlglotError, AttributeError, AssertionError, IndexError, KeyError, TypeError, ValueError)
"""Errors of the parser for a text that it cannot parse: its own error classes, and its internal errors on odd texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A parsed and checked text, independent of its parameters."""

    normalised: str
    tree: exp.Query
    checked: exp.Query
    references: tuple[Source, ...]
    places: Mapping[str, TextPosition]
    functions: frozenset[str]
    volatile: frozenset[str]


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
    read = _admissions.read(text, catalog, schema)
    given = check_parameters(read.places, parameters or {})
    return CheckedQuery(
        text=text,
        normalised=read.normalised,
        tree=read.tree,
        checked=read.checked,
        references=read.references,
        parameters=given,
        functions=read.functions,
        volatile=read.volatile,
        catalog=catalog,
        schema=schema,
    )


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
        return quoted(views[_source(table, admitted.catalog, admitted.schema)])

    writer = SqlWriter(
        table=of_table,
        common_table=of_common_table,
        parameter=lambda name: literal(admitted.parameters[name]),
        comma=" CROSS JOIN",
        datasets=_prefixes(admitted.references),
    )
    return writer.write(admitted.checked)


def source_of(admitted: CheckedQuery, table: exp.Table) -> Source:
    """Return the dataset that a table of an admitted query names; it is not a common table expression."""
    return _source(table, admitted.catalog, admitted.schema)


def _read(text: str, catalog: str | None, schema: str | None) -> _Read:
    try:
        return _reading(text, catalog, schema)
    except RecursionError:
        raise InvalidRequest("The query is nested too deeply. Split it, with WITH or in several queries.") from None


class _AdmissionCache:
    """LRU cache of parsed and checked query texts, by text and default catalog and schema. Thread-safe."""

    def __init__(self) -> None:
        self._reads: OrderedDict[tuple[str, str | None, str | None], _Read] = OrderedDict()
        self._chars = 0
        self._mutex = threading.Lock()

    def read(self, text: str, catalog: str | None, schema: str | None) -> _Read:
        """Return a parsed and checked text; parse and check it if it is not in the cache."""
        key = (text, catalog, schema)
        with self._mutex:
            cached = self._reads.get(key)
            if cached is not None:
                self._reads.move_to_end(key)
                return cached
        read = _read(text, catalog, schema)
        with self._mutex:
            self._chars += len(text) if key not in self._reads else 0
            self._reads[key] = read
            while self._chars > CACHED_CHARS:
                (evicted, _, _), _ = self._reads.popitem(last=False)
                self._chars -= len(evicted)
        return read


_admissions: Final = _AdmissionCache()


def _reading(text: str, catalog: str | None, schema: str | None) -> _Read:
    tokens, checked = _one_select(text)

    def path_of(table: exp.Table) -> tuple[str, ...]:
        if common_table(table) is not None:
            return (table.name,)
        return _path(_source(table, catalog, schema))

    def of_table(table: exp.Table) -> str:
        return ".".join(map(quoted, path_of(table)))

    tables = [table for table in checked.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    tables.sort(key=lambda table: table.parts[0].meta.get("start", 0))
    named = [_source(table, catalog, schema) for table in tables if common_table(table) is None]
    syntax = check_syntax(checked)
    writer = SqlWriter(table=of_table, common_table=_common_name, datasets=_prefixes(named))
    normalised = writer.write(checked)
    written = tokenize(normalised)
    check_round_trip(tokens, written, _names(named))
    again = _query_of(parse_plain, written, normalised)
    check_same(checked, again, table=path_of, datasets=_prefixes(named))
    return _Read(
        normalised=normalised,
        tree=_known(written, normalised, again),
        checked=checked,
        references=tuple(dict.fromkeys(named)),
        places=syntax.parameters,
        functions=frozenset(syntax.functions),
        volatile=frozenset(syntax.volatile),
    )


def _one_select(text: str) -> tuple[list[Token], exp.Query]:
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"A query has at most {MAX_QUERY_CHARS:,} characters, this one has {len(text):,}.")
    half = _HALF.search(text)
    if half is not None:
        raise InvalidRequest(
            f"Character {half.start() + 1:,} of the query is half a character, which no text can hold."
        )
    tokens = tokenize(text)
    if not tokens:
        raise InvalidRequest("A query must be exactly one SELECT; this text has none.")
    if len(tokens) > MAX_QUERY_TOKENS:
        raise InvalidRequest(
            f"A query has at most {MAX_QUERY_TOKENS:,} words, names, values and signs, this one has {len(tokens):,}. Split it, "
            "or bind long lists as parameters."
        )
    if tokens[0].token_type not in _BEGINS:
        raise InvalidRequest(f"A query must be exactly one SELECT; this text begins with {tokens[0].text[:40]!r}.")
    return tokens, _query_of(parse_plain, tokens, text)


def _known(tokens: list[Token], text: str, plain: exp.Query) -> exp.Query:
    """Return the typed tree, or the plain tree if the parser's meaning of a function differs from Spark's."""
    try:
        known = _query_of(parse_typed, tokens, text)
    except InvalidRequest:
        return plain
    return known if decides_alike(known, plain) else plain


def _query_of(parse: Callable[[list[Token], str], exp.Expr | None], tokens: list[Token], text: str) -> exp.Query:
    try:
        tree = parse(list(tokens), text)
    except PARSER_ERRORS as error:
        raise InvalidRequest(f"The query cannot be read{_place(error)}.") from error
    if not isinstance(tree, exp.Query):
        raise InvalidRequest("A query must be exactly one SELECT.")
    return tree


_HALF: Final = re.compile("[\ud800-\udfff]")


def _names(sources: list[Source]) -> frozenset[str]:
    """Return the names of catalogs, schemas and tables: the only words that may occur less often in the rewrite."""
    return frozenset(name for source in sources for name in (source.name.catalog, source.name.schema, source.table))


def _place(error: Exception) -> str:
    """Return the position where the parser stopped. Its messages are about its own classes, so they are not used."""
    if not isinstance(error, ParseError) or not error.errors:
        return ": it has words in an order that no SELECT has"
    where = error.errors[0]
    at = f" at line {where['line']}, column {where['col']}"
    return f"{at}, near {where['highlight'][:40]!r}" if where["highlight"] else at


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
            f"{shown}{located(table)} is neither a dataset nor a common table expression that is visible there. A "
            "dataset has three parts, catalog.schema.table, or two or one with a default catalog and schema."
        )
    try:
        return Source.parse(*names)
    except InvalidRequest as error:
        raise InvalidRequest(f"{shown}{located(table)} is not a dataset. {error}") from error


def _prefixes(sources: "tuple[Source, ...] | list[Source]") -> frozenset[tuple[str, str, str]]:
    return frozenset(map(_path, sources))


def _path(source: Source) -> tuple[str, str, str]:
    return source.name.catalog, source.name.schema, source.table


def _common_name(cte: exp.CTE) -> str:
    """Return the name of a common table expression, if all engines compare that name in the same way."""
    name = cte.alias
    if not name.isascii():
        raise InvalidRequest(f"The name {name!r}{located(cte)} of a common table expression has letters beyond ASCII.")
    return name


def common_table(table: exp.Table) -> exp.CTE | None:
    """Return the common table expression that a table's name means in its place, if there is one.

    It is visible in the query of its WITH and in the expressions after it. In itself it is visible only if it is
    recursive.
    """
    if len(table.parts) != 1 or not table.name.isascii():
        return None
    wanted = table.name.lower()
    node: exp.Expr = table
    while node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.With):
            at = _positions(parent).get(wanted)
            if at is not None and at < (node.index or 0) + bool(parent.recursive):
                return _nth(parent, at)
        elif (own := parent.args.get("with_")) is not None and own is not node:
            at = _positions(own).get(wanted)
            if at is not None:
                return _nth(own, at)
        node = parent
    return None


def _nth(with_: exp.With, at: int) -> exp.CTE:
    found: exp.CTE = with_.expressions[at]
    return found


_POSITIONS: Final = "siltstone_positions"


def _positions(with_: exp.With) -> dict[str, int]:
    """Return the position of each common table expression of a WITH, by its name in lower case. The result is cached.

    Raises:
        InvalidRequest: two have the same name, or engines compare a name in different ways.
    """
    known: dict[str, int] | None = with_.meta.get(_POSITIONS)
    if known is None:
        known = {}
        for number, cte in enumerate(with_.expressions):
            name = _common_name(cte).lower()
            if name in known:
                raise InvalidRequest(f"WITH has two expressions named {cte.alias}; the second is at {place_of(cte)}.")
            known[name] = number
        with_.meta[_POSITIONS] = known
    return known


def expanded_tables(query: exp.Query) -> int:
    """Return the number of tables that a query reads after each common table expression is inlined.

    An engine that inlines them plans in time proportional to this number, which may double with every expression.
    """
    reads: dict[int, list[exp.Query | None]] = {}
    counted: dict[int, int] = {}
    waiting: list[exp.Query] = [query]
    while waiting:  # a loop, because a chain of expressions may exceed the recursion limit
        node = waiting[-1]
        if id(node) not in reads:
            reads[id(node)] = [None if cte is None else cte.this for cte in map(common_table, _tables_of(node))]
            waiting += [one for one in reads[id(node)] if one is not None and id(one) not in reads]
        else:
            waiting.pop()
            found = reads[id(node)]
            counted.setdefault(id(node), sum(1 if one is None else counted.get(id(one), 1) for one in found))
    return counted[id(query)]


def _tables_of(query: exp.Query) -> Iterator[exp.Table]:
    """Yield the tables that a query names outside of its common table expressions."""
    for node in query.walk(prune=lambda one: isinstance(one, exp.With)):
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            yield node
