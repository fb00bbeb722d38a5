"""The commands, grouped by subject. Each module registers its own. A command imports what it needs when it runs.

`datasets` (create, list, alter, drop), `write`, `read`, `sql`, `cache`, `history` (history, changes, export), `status`,
`maintenance` (compact, squash, cluster, vacuum), `tiers`, `compactor`, `spark`, `backups`, `events`, `system` (doctor, demo).
"""
