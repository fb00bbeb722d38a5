"""Translates a checked query from Spark's dialect to DuckDB's SQL with the same meaning, or raises the reason why not.

Nothing is passed through unchecked. Each node of the tree has its own rule. The rule knows the node's type in Spark,
and writes SQL with that type and those values. A node, an argument or a type without a rule raises `Unsupported`. Then
Spark answers. Every function of these modules may raise it.

* `select` is the entry point: SELECT and FROM, set operations, common table expressions, subqueries.
* `result_clauses` translates GROUP BY, HAVING, ORDER BY and LIMIT.
* `expressions`, `functions` (of one row) and `aggregates` (of many rows, and windows) have the rules of expressions.
* `scopes` resolves names, `types` has Spark's rules of types, `typed_sql` is SQL text with its type.

The published subset is `docs/sql-hot.md`. Tests compare its items with the rules.
"""


class Unsupported(Exception):  # noqa: N818
    """The query is outside the subset; the message is a phrase that names the unsupported part."""
