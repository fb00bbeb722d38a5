"""The command `silt`: arguments in, tables or JSON out.

Process: `__main__`, `app` (options, errors, exit codes), `registration`, `context` (global options), `signals`. Input:
`options`, `input_parsing`. Output: `render`, `result_files`, `job_output`, `compactor_output`, `demo_output`. Logs of
builds: `event_logs`. Setup: `doctor`, `class_archives`. Package: `commands`.
"""
