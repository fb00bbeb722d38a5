"""Conditions on rows, as text in Spark's words: one expression over the dataset's own columns, and nothing else."""

from collections.abc import Collection
from typing import Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from siltstone.errors import InvalidRequest
from siltstone.model.parsing import FORBIDDEN_FUNCTIONS, statements

MAX_PREDICATE_CHARS: Final = 10_000
_NOT_OF_A_ROW: Final = (
    exp.Query,
    exp.Subquery,
    exp.Exists,
    exp.AggFunc,
    exp.Window,
    exp.Placeholder,
    exp.Parameter,
    exp.Star,
)


def check_predicate(text: str, columns: Collection[str]) -> str:
    """Return the text if it is a condition that can be answered from one row alone.

    >>> check_predicate("city = 'Bern' AND n > 3", ["city", "n"])
    "city = 'Bern' AND n > 3"

    Raises:
        InvalidRequest: it cannot be read, asks for more than a row, or names a column that is not there.
    """
    condition = _condition(text)
    for node in condition.find_all(*_NOT_OF_A_ROW):
        raise InvalidRequest(f"A condition is about one row; {node.sql('spark')!r} cannot be in it.")
    for function in condition.find_all(exp.Anonymous):
        if function.name.lower() in FORBIDDEN_FUNCTIONS:
            raise InvalidRequest(f"Function {function.name} is not allowed in a condition.")
    known = {name.lower() for name in columns}
    named = list(condition.find_all(exp.Column))
    for column in named:
        first = column.parts[0].name  # what comes after a point is a field of a struct
        if first.lower() not in known:
            raise InvalidRequest(f"There is no column {first!r}; there are {', '.join(columns)}.")
    if not named:
        raise InvalidRequest("A condition names at least one column; this one would be the same for every row.")
    return text


def _condition(text: str) -> exp.Expr:
    unreadable = InvalidRequest(
        "The condition cannot be read. Write one expression, as after WHERE: city = 'Bern' AND n > 3."
    )
    if not text.strip() or len(text) > MAX_PREDICATE_CHARS:
        raise unreadable
    try:
        parsed = statements(f"SELECT 1 FROM t WHERE ({text}\n)")  # noqa: S608  # it is parsed, and run nowhere
    except SqlglotError as error:
        raise unreadable from error
    select = parsed[0] if len(parsed) == 1 else None
    if not isinstance(select, exp.Select):
        raise unreadable
    parts = {name for name, part in select.args.items() if part}
    where = select.args.get("where")
    if (
        parts - {"expressions", "from", "from_", "where", "kind"}
        or where is None
        or not isinstance(where.this, exp.Paren)
    ):
        raise unreadable
    found: exp.Expr = where.this.this
    return found
