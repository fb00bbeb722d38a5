"""The published subset: what the hot engine answers, as data.

Each item names what a user writes, the nodes of the parser that carry it, and what is left to Spark. `translate` has the rules; a
test sees that each rule belongs to an item, that each item has differential cases, and that `docs/sql-hot.md` lists them all.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Part(StrEnum):
    """What an item is."""

    CLAUSE = "clauses"
    OPERATOR = "operators"
    FUNCTION = "functions"
    AGGREGATE = "aggregates"
    WINDOW = "windows"
    TYPE = "types"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that the hot engine can do exactly as Spark does it."""

    part: Part
    name: str
    nodes: tuple[str, ...] = ()
    """The parser's classes that carry it."""
    limits: str = ""
    """What of it is left to Spark."""


def _items(part: Part, rows: tuple[tuple[str, str, str], ...]) -> tuple[Item, ...]:
    return tuple(Item(part=part, name=name, nodes=tuple(nodes.split()), limits=limits) for name, nodes, limits in rows)


ITEMS: Final[tuple[Item, ...]] = (
    *_items(
        Part.CLAUSE,
        (
            (
                "SELECT columns, *, t.*, aliases",
                "Column Paren",
                "an expression other than a column or a plain aggregate needs an alias",
            ),
            ("SELECT DISTINCT", "", "of float, double and nested columns"),
            (
                "FROM with aliases, subqueries and range",
                "Subquery",
                "VALUES, functions that make rows, LATERAL, PIVOT, UNPIVOT",
            ),
            ("WITH", "", "recursive ones"),
            (
                "JOIN inner, cross, left, right, full, semi, anti; ON, USING",
                "",
                "NATURAL; USING of more than two tables, or of outer joins but the left",
            ),
            ("WHERE", "", ""),
            (
                "GROUP BY expressions, places, aliases",
                "",
                "ALL, ROLLUP, CUBE, GROUPING SETS; float, double and nested values; parameters",
            ),
            ("HAVING", "", "without groups"),
            (
                "ORDER BY expressions, places, aliases; NULLS FIRST, NULLS LAST",
                "",
                "nested values; ALL; subqueries and parameters",
            ),
            ("LIMIT, OFFSET", "", "in a subquery, and any OFFSET, without ORDER BY"),
            ("UNION, INTERSECT, EXCEPT, with ALL", "", "of float, double and nested columns, but UNION ALL; BY NAME"),
            (
                "EXISTS, IN (SELECT ...)",
                "Exists",
                "a subquery of another type than the value; IN where it is no condition; outer columns beyond a WHERE",
            ),
            (
                "a subquery as a value",
                "",
                "one that is no plain aggregate, which might have several rows; outer columns beyond a WHERE",
            ),
            (
                "parameters :name",
                "Placeholder",
                "of other classes than bool, int, float, str, date and datetime with a zone",
            ),
        ),
    ),
    *_items(
        Part.OPERATOR,
        (
            ("+ - *", "Add Sub Mul", "decimals whose result has more digits than 38 and loses some behind the point"),
            ("/", "Div", "decimals by decimals or whole numbers"),
            ("%, mod, div", "IntDiv Mod", "of other than whole numbers"),
            ("unary -", "Neg", ""),
            ("date + INTERVAL, date - INTERVAL", "", "other units than day, week, month and year; timestamps"),
            (
                "= <> < <= > >= <=>",
                "EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ",
                "text with numbers; nested values; literals beyond 64 bits",
            ),
            ("BETWEEN", "Between", ""),
            ("AND OR NOT", "And Or Not", ""),
            ("IS NULL, IS TRUE, IS FALSE", "Is", "IS NULL of constants that have to be computed"),
            ("IN (values)", "In", "more than 1,000 values"),
            (
                "LIKE, LIKE ANY, LIKE ALL",
                "Like",
                "a pattern that is no literal or holds a backslash; ESCAPE; ILIKE; RLIKE; more than 1,000 patterns",
            ),
            (
                "||",
                "DPipe",
                "of other than text; of what was put together by concat, || or replace; results beyond 64 KB",
            ),
            ("CASE", "Case", "branches of text and other types"),
            (
                "CAST, ::",
                "Cast TryCast",
                "text to anything, but literals of dates and times; float, double and timestamps to text; TRY_CAST",
            ),
        ),
    ),
    *_items(
        Part.FUNCTION,
        (
            ("abs", "Abs", ""),
            ("add_months", "AddMonths", "a number of months that is no literal"),
            ("ceil, floor", "Ceil Floor", "of whole numbers; with a scale"),
            ("coalesce, ifnull, nvl", "Coalesce", ""),
            (
                "concat",
                "Concat",
                "of other than text; of what was put together by concat, || or replace; results beyond 64 KB",
            ),
            ("contains, endswith, startswith", "Contains EndsWith StartsWith", ""),
            ("date_add, date_sub", "TsOrDsAdd DateAdd", "days as bigint"),
            ("date_trunc, trunc", "", "units below the hour, and short names of units; timestamps without zone"),
            ("datediff", "DateDiff", "with a unit"),
            ("greatest, least", "Greatest Least", ""),
            ("hour, minute, second", "Hour Minute Second", "of dates"),
            ("if, nvl2", "If Nvl2", ""),
            ("isnan", "IsNan", ""),
            ("isnull, isnotnull", "Anonymous", ""),
            ("last_day", "LastDay", ""),
            ("left, right", "Left Right", "a length that is no literal"),
            ("length, char_length", "Length", "of binary"),
            (
                "lower, upper",
                "Lower Upper",
                "rows with letters beyond ASCII: such a query is answered by Spark after all",
            ),
            ("nullif", "Nullif", ""),
            ("replace", "Replace", "of what is no literal; by more than is taken away: as concat"),
            ("round", "Round", "of other than decimals; a negative scale"),
            ("sqrt", "Sqrt", ""),
            ("substring, substr", "Substring", "a place or length that is no literal, or negative"),
            ("to_date", "TsOrDsToDate", "of text; with a format"),
            ("trim, ltrim, rtrim", "Trim", "of other characters than blanks"),
            (
                "year, quarter, month, day, dayofmonth, dayofweek, dayofyear, extract",
                "Year Quarter Month Day DayOfMonth DayOfWeek DayOfYear Extract",
                "other parts in extract",
            ),
        ),
    ),
    *_items(
        Part.AGGREGATE,
        (
            ("count(*), count, count(DISTINCT)", "Count", "of several columns"),
            ("count_if", "CountIf", ""),
            ("sum, sum(DISTINCT)", "Sum", ""),
            ("avg", "Avg", "decimals of more than 18 digits, or DISTINCT, FILTER or OVER of decimals"),
            ("min, max", "Min Max", "of nested values"),
            ("bool_and, bool_or", "LogicalAnd LogicalOr", ""),
            ("FILTER (WHERE ...)", "Filter", "of avg, count_if, bool_and and bool_or"),
        ),
    ),
    *_items(
        Part.WINDOW,
        (
            ("row_number, rank, dense_rank", "", "without an order"),
            ("lag, lead", "", "with a default; by what is no literal"),
            ("count, sum, avg, min, max OVER", "Window", "frames of RANGE with a distance"),
        ),
    ),
    *_items(
        Part.TYPE,
        (
            ("boolean", "Boolean", ""),
            ("tinyint, smallint, int, bigint", "", ""),
            ("float, double", "", "grouped, distinct or in set operations"),
            ("decimal", "", ""),
            ("string", "Literal", "collations"),
            ("binary", "", ""),
            ("date, timestamp, timestamp_ntz", "", "intervals as results"),
            ("array, map, struct", "", "anything but passing through, and fields of structs"),
            ("NULL", "Null", "as a column of its own"),
        ),
    ),
)

FLOATS: Final = (
    "sum and avg of float and double, and avg of whole numbers beyond 2^53, may differ in the last digits, as they do between "
    "two runs on Spark: no engine promises the order of the additions. Everything else is equal to the last bit."
)
ANY_ROWS: Final = (
    "LIMIT without ORDER BY, rows that are equal in what ORDER BY names, row_number over such rows, and which zero min, max, "
    "greatest and least of 0.0 and -0.0 return: any of the right answers, on either engine."
)
ERRORS: Final = (
    "an error that a row would raise (an overflow, a division by zero) where the answer does not need it, because another "
    "condition leaves the row out or nothing reads the value, or inside of a sum whose total fits: either engine raises it or "
    "answers, by the order in which it looks at rows and conditions."
)
