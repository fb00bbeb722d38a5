"""Questions in SQL: what is allowed, who answers, what comes back."""

from siltstone.query.sqlglot_loader import prefer_source

prefer_source()  # before any module of this package imports sqlglot
