"""The record of cycles and jobs, in an event log of the lake.

`journal` (writes it), `records` (pure: events of cycles and jobs), `job_commits` (commits of a job in a table's log),
`recovery` (cycles of dead processes), `owner_liveness`, `totals`.
"""
