"""The planner: pure functions from table states to the jobs of a cycle.

`planner` (entry point), `model` (inputs and outputs), `triggers` (fold, squash, cluster, vacuum), `roll_up_policy` (tiers over
periods), `budget` (limits and fairness), `table_state` (a dataset as the planner sees it), `manual` (jobs by request).
"""
