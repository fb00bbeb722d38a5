"""The gate: a user's SQL is read, checked against lists and written anew; engines get only that text.

`admit` (entry point): `tokenizer` → `parser` → `sql_writer` (by `allowlist`) → `round_trip` (no token lost) → `tree_comparison`
(same tree) → `parameters` → `checked_query`. `column_check` (misspelt columns), `row_condition` (a condition on one row),
`cross_join_guard`.
"""
