"""SQL queries: the gate checks them, the router chooses an engine, Spark or the hot cache answers.

`router` (which engine answers, and why) over `hot_executor` and `spark_executor`, with `cancellation` (ids, time limits,
interrupts), `result_cache`, `result`. `row_filter` (rows in memory for which a condition holds), `components`,
`sqlglot_loader`.
Packages: `gate` (what is allowed), `translate` (Spark's SQL as DuckDB's), `hot` (datasets in memory).
"""

from siltstone.query.sqlglot_loader import prefer_source

prefer_source()  # before any module of this package imports sqlglot
