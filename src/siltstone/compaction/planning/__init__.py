"""The planner: pure functions from table states to the jobs of a cycle.

`planner` (entry point), `model` (inputs and outputs), `triggers` (fold, squash, cluster, vacuum), `roll_up_policy`
(tiers over periods), `budget` (limits and fairness), `table_state` (the state of a dataset for the planner), `manual`
(jobs by request).
"""
