"""The commands, grouped by subject. Each module registers its own; `registration` says what it may import at its top.

Commands: `datasets` (create, list, alter, drop), `write`, `read`, `sql`, `history` (history, changes, export), `status`,
`maintenance` (compact, cluster, vacuum), `tiers`, `backups`, `system` (doctor, demo). Groups of commands: `cache`,
`compactor`, `events` (with `events_read` and `events_write`), `spark`.
"""
