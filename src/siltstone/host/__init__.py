"""The operating system under a process.

`file_lock`, `fork_safety` (forked children), `deferred_interrupts` (Ctrl-C between durable steps), `private_folders` (modes),
`user_cache` (files that can be rebuilt), `memory`, `system_errors` (errors of the operating system and of native code as
Siltstone errors).
"""
