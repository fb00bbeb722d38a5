"""The Spark runtime: sessions, servers, JVMs, and work that is sent to Spark's tasks. It knows no dataset.

`session` (get a session), `lake_sessions` (those of one lake object), `shared_server` and `server_daemon` (the server that
commands share), `connect_server` (a server as a child process), `launch_options`, `jvm`, `jars`, `scratch` (private local
files), `progress`, `job_tags` (names to cancel by), `errors` (classes of Spark's errors), `python_workers` (daemons to end),
`arrow_tasks` (run Arrow functions in tasks), `output_files` (files that tasks wrote, verified).
"""
