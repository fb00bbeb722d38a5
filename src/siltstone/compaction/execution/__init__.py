"""Execution of jobs.

`cycle_runner` (the jobs of a plan), `events` (for subscribers), `retry` (splits and limits), `job` (and its inline
runner), `worker_pool`, `worker_process` and `worker_main` (jobs in separate processes), `system_table_runner`, `report`.
"""
