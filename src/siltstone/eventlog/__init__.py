"""The build event log: append-only, one behaviour on SQLite, PostgreSQL and Delta.

API: `log`, `address`, `import_export`, `spark_report`. Events: `events`, `event_models` and `event_json` (validation),
`transitions`. Tables: `event_store` (appends), `tables`, `queries`. SQL databases: `database` (connections,
transactions, and the backend). Delta: `delta_backend`, `event_table` (the port), `local_table`,
`arrow_rows`, `projection`, `pending_commits`, `compaction` (merges small files).
"""
