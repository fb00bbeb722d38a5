"""Coordination of the processes of a lake.

`liveness` (file locks of live processes), `host_identity` (where a process runs), `leases` on `lease_table` (which process may
compact, with fencing epochs), `state_files` (small JSON files beside the lease).
"""
