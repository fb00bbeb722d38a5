"""Code that runs inside Spark's Python workers. Spark gets it by value, so it imports nothing else of Siltstone.

`io` (Arrow tables as bytes, output files), `parquet_checksums`, `values` (rules for one value), `text_columns` (the same for a
whole column of text), `json_rows`, `csv_rows`, `sort` (sorted loads), `fold`, `merge_files` (roll-ups), `stream` (query results).
"""
