"""Writes of rows.

`row_conversion` (user rows and keys to Arrow), `change_writer` (stages and commits a batch), `log_rows`,
`buffered_producer`, `partial_update`, `tombstones` (by key, by subject, by condition), `idempotency_marks` (which
producer sequences and files were applied).
"""
