"""The planner: from table states to the jobs of a cycle. Pure, except two modules that read tables.

`planner` (entry point), `model` (inputs and outputs), `triggers` (fold, squash, cluster, vacuum), `roll_up_policy`
(tiers over periods), `budget` (limits and fairness), `table_state` (reads the state of a dataset),
`manual` (jobs by request; reads snapshots).
"""
