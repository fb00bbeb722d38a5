"""Reads of a dataset: changes merged over base.

`merged_view` chooses between `arrow_view` (no Spark), `spark_view` with `spark_frames` and `position_masks`, and `log_view`
with `dedup`. `point_lookup` (rows by key), `time_travel`, `change_feed`, `export`, `retry` (files removed during a read),
`python_rows` (Arrow rows as Python values).
"""
