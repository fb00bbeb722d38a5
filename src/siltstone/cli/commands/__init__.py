"""The commands, grouped by subject. Each module lists its own in `COMMANDS`. `registration` says what it may import.

Commands: `datasets` (create, list, alter, drop), `write`, `read`, `sql`, `history` (history, changes, export), `status`,
`maintenance` (compact, cluster, vacuum), `tiers`, `backups`, `system` (doctor, demo). Groups of commands: `cache`,
`compactor`, `events` (with `events_read` and `events_write`), `spark`.
"""
