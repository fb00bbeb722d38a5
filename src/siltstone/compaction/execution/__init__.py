"""Execution of jobs.

`cycle_runner` (the jobs of a plan), `retry` (splits and limits), `job` (a job, and running it inline), `worker_pool`,
`worker_process` and `worker_main` (jobs in processes of their own), `system_table_runner`, `report`.
"""
