"""Writes of rows.

`row_conversion` (user rows to Arrow), `change_writer` (stages and commits a batch), `log_rows`, `buffered_producer`,
`partial_update`, `idempotency_marks` (which producer sequences and files were applied).
"""
