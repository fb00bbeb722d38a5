"""Maintenance of a lake, without a schedule.

- `service`: plans, runs, journals and recovers compaction cycles.
- `background_squash`: squashes small change files after a writer's acknowledgement.
- `repair`: finds and repairs damages.
"""
