"""Compaction: which data is rewritten, how jobs run, and the record of both.

`planning` (which jobs), `operations` (rewrites of data), `execution` (how jobs run), `journal` (the record, and
recovery), `failures` (pure: classes of errors), `lake_components` (the composition root of a lake and of its workers).
"""
