"""The compactor: the long-running process that maintains one lake on a schedule, under a lease.

- `service`: `CompactorService`, which `silt compactor` and `lake.compactor()` run.
- `scheduler`: holds the lease and runs due tasks as numbered cycles.
- `schedule`: tasks, crons and due times; pure.
- `tasks`: values of the scheduler: task, context, result, cycle, status.
- `events`: the events that a compactor reports.
- `status`: pause, stop and status for other processes, through state files.
"""
