"""SQL queries: the gate checks them, the router chooses an engine, Spark or the hot cache answers."""

from siltstone.query.sqlglot_loader import prefer_source

prefer_source()  # before any module of this package imports sqlglot
