"""The gate: exactly one SELECT, and every table in it is a dataset of the lake.

The text is parsed, never pasted: each table reference is found by the parser, and only its own characters are replaced by
the name of a view over that dataset's merged frame.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from siltstone.errors import InvalidRequest
from siltstone.model.names import RAW_PREFIX, DatasetName
from siltstone.model.parsing import FORBIDDEN_FUNCTIONS, statements
from siltstone.query.admitted import Admitted, Source

MAX_QUERY_CHARS: Final = 100_000
_NOT_A_SELECT: Final = (
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.Create,
    exp.Drop,
    exp.Command,
    exp.Into,
    exp.QueryTransform,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReference:
    """One place in the text that names a dataset."""

    name: DatasetName
    raw: bool
    start: int
    end: int
    alias: str | None
    sampled: bool = False


def admit(
    text: str, *, parameters: Mapping[str, object] | None = None, catalog: str | None = None, schema: str | None = None
) -> Admitted:
    """Return the query if it may run: one SELECT over datasets, with a value for each of its placeholders.

    Args:
        text: one SELECT in Spark's dialect.
        parameters: the value of each ``:name`` in it.
        catalog: the catalog of tables that are named without one; needs a schema.
        schema: the schema of tables that are named without one.

    Raises:
        InvalidRequest: it may not run; the message says what and where.
    """
    select = _one_select(text)
    _check_nodes(select)
    named: list[Source] = []
    for table in select.find_all(exp.Table):
        if table.args.get("db") or not _is_common_table(table):
            if schema is not None and not table.args.get("db"):
                table.set("db", exp.to_identifier(schema, quoted=True))
            if catalog is not None and not table.args.get("catalog"):
                table.set("catalog", exp.to_identifier(catalog, quoted=True))
            found = _reference(table)
            named.append(Source(found.name, found.raw))
    given = dict(parameters or {})
    placed = {node.name for node in select.find_all(exp.Placeholder)}
    if placed != set(given):
        raise InvalidRequest(f"The query's parameters are {sorted(placed)}, values were given for {sorted(given)}.")
    functions = frozenset(
        (node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
        for node in select.find_all(exp.Func)
    )
    return Admitted(
        text=text,
        normalised=select.sql("spark", comments=False),
        tree=select,
        references=tuple(dict.fromkeys(named)),
        parameters=given,
        functions=functions,
        volatile=frozenset(),
    )


def references(text: str) -> list[TableReference]:
    """Return every dataset that the query names, in the order of the text.

    Raises:
        InvalidRequest: not one SELECT, or something in it that is not a dataset of a lake.
    """
    select = _one_select(text)
    _check_nodes(select)
    found = [
        _reference(table)
        for table in select.find_all(exp.Table)
        if not table.find_ancestor(exp.Hint) and (table.args.get("db") or not _is_common_table(table))
    ]
    return sorted(found, key=lambda reference: reference.start)


def _check_nodes(select: exp.Query) -> None:
    for function in select.find_all(exp.Anonymous):
        if function.name.lower() in FORBIDDEN_FUNCTIONS:
            raise InvalidRequest(f"Function {function.name} is not allowed in a query.")
    for node in select.find_all(*_NOT_A_SELECT):
        what = "TRANSFORM" if isinstance(node, exp.QueryTransform) else node.key.upper()
        raise InvalidRequest(f"A query only selects; {what} is not allowed in it.")


def _is_common_table(table: exp.Table) -> bool:
    """True if the name is a common table expression that is visible where the table stands.

    One is visible in the query that its WITH belongs to and in the expressions after it; in itself only if recursive.
    """
    node: exp.Expr = table
    while node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.With):
            at = next(i for i, cte in enumerate(parent.expressions) if cte is node)
            visible = parent.expressions[: at + 1 if parent.recursive else at]
        else:
            own = parent.args.get("with_") or parent.args.get("with")
            visible = own.expressions if own is not None and own is not node else []
        if any(cte.alias_or_name.lower() == table.name.lower() for cte in visible):
            return True
        node = parent
    return False


def _one_select(text: str) -> exp.Query:
    if len(text) > MAX_QUERY_CHARS:
        raise InvalidRequest(f"A query has at most {MAX_QUERY_CHARS} characters.")
    try:
        parsed = [one for one in statements(text) if one is not None and not isinstance(one, exp.Semicolon)]
    except SqlglotError as error:
        raise InvalidRequest(f"The query cannot be read{_place(error)}.") from error
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        raise InvalidRequest("A query must be exactly one SELECT.")
    return parsed[0]


def _place(error: SqlglotError) -> str:
    """Say where the parser stopped; its own words are about its classes."""
    if not isinstance(error, ParseError) or not error.errors:
        return ": a quote, a name or a comment in it may not be closed"
    where = error.errors[0]
    at = f" at line {where['line']}, column {where['col']}"
    return f"{at}, near {where['highlight']!r}" if where["highlight"] else at


def _reference(table: exp.Table) -> TableReference:
    parts = table.parts
    if not all(isinstance(part, exp.Identifier) for part in parts):
        raise InvalidRequest(f"{table.sql('spark')} is not a dataset: name catalog.schema.table.")
    names = [part.name for part in parts]
    raw = names[-1].startswith(RAW_PREFIX)
    if raw:
        names[-1] = names[-1].removeprefix(RAW_PREFIX)
    return TableReference(
        name=DatasetName.parse(".".join(names)),
        raw=raw,
        start=parts[0].meta.get("start", 0),
        end=parts[-1].meta.get("end", 0),
        alias=table.alias or None,
        sampled=bool(table.args.get("sample")),
    )


def rewritten(text: str, views: list[tuple[TableReference, str]]) -> str:
    """Put a view's name in the place of each reference; one without an alias keeps its table's name as alias."""
    for reference, view in sorted(views, key=lambda pair: -pair[0].start):
        named = reference.alias or reference.sampled  # a sample stands between a table and its alias
        alias = "" if named else f" AS `{RAW_PREFIX if reference.raw else ''}{reference.name.table}`"
        text = f"{text[: reference.start]}`{view}`{alias}{text[reference.end + 1 :]}"
    return text
