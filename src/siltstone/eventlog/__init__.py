"""The build event log: append-only, one behaviour on SQLite, PostgreSQL and Delta."""
