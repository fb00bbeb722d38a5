"""The published subset: the items of `docs/sql-hot.md`, and the rules of the translation that belong to each."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "sql-hot.md").read_text()
PARTS = ("Clauses", "Operators", "Functions", "Aggregates", "Windows", "Types")
"""Sections of the page. Each has a table of items and of the cases that Spark answers instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One feature that the hot engine executes exactly as Spark does."""

    part: str
    name: str


NODES = {
    "SELECT columns, *, t.*, aliases": "Column Paren",
    "FROM with aliases, subqueries and range": "Subquery",
    "EXISTS, IN (SELECT ...)": "Exists",
    "parameters :name": "Placeholder",
    "+ - *": "Add Sub Mul",
    "/": "Div",
    "%, mod, div": "IntDiv Mod",
    "unary -": "Neg",
    "= <> < <= > >= <=>": "EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ",
    "BETWEEN": "Between",
    "AND OR NOT": "And Or Not",
    "IS NULL, IS TRUE, IS FALSE": "Is",
    "IN (values)": "In",
    "LIKE, LIKE ANY, LIKE ALL": "Like",
    "||": "DPipe",
    "CASE": "Case",
    "CAST, ::": "Cast TryCast",
    "abs": "Abs",
    "add_months": "AddMonths",
    "ceil, floor": "Ceil Floor",
    "coalesce, ifnull, nvl": "Coalesce",
    "concat": "Concat",
    "contains, endswith, startswith": "Contains EndsWith StartsWith",
    "date_add, date_sub": "TsOrDsAdd DateAdd",
    "datediff": "DateDiff",
    "greatest, least": "Greatest Least",
    "hour, minute, second": "Hour Minute Second",
    "if, nvl2": "If Nvl2",
    "isnan": "IsNan",
    "isnull, isnotnull": "Anonymous",
    "last_day": "LastDay",
    "left, right": "Left Right",
    "length, char_length": "Length",
    "lower, upper": "Lower Upper",
    "nullif": "Nullif",
    "replace": "Replace",
    "round": "Round",
    "sqrt": "Sqrt",
    "substring, substr": "Substring",
    "to_date": "TsOrDsToDate",
    "trim, ltrim, rtrim": "Trim",
    "year, quarter, month, day, dayofmonth, dayofweek, dayofyear, extract": (
        "Year Quarter Month Day DayOfMonth DayOfWeek DayOfYear Extract"
    ),
    "count(*), count, count(DISTINCT)": "Count",
    "count_if": "CountIf",
    "sum, sum(DISTINCT)": "Sum",
    "avg": "Avg",
    "min, max": "Min Max",
    "bool_and, bool_or": "LogicalAnd LogicalOr",
    "FILTER (WHERE ...)": "Filter",
    "count, sum, avg, min, max OVER": "Window",
    "boolean": "Boolean",
    "string": "Literal",
    "NULL": "Null",
}
"""Parser classes whose rules belong to an item, by item name. Other items need no rule."""


def _items(part: str) -> list[Item]:
    section = PAGE.split(f"\n## {part}\n")[1].split("\n## ")[0]
    names = [name.replace("\\|", "|") for name in re.findall(r"^\| (.+?) \| .*\|$", section, re.MULTILINE)[1:]]
    return [Item(part=part, name=name) for name in names]


ITEMS = tuple(item for part in PARTS for item in _items(part))
