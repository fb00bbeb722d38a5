"""When maintenance runs: cron, cycles, and the lease that lets one process of a lake run them."""
