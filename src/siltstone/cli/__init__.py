"""The command `silt`: arguments in, tables or JSON out.

Process: `__main__`, `app` (options, errors, exit codes), `registration`, `context` (global options), `signals`. Input:
`input_parsing`. Output: `render`, `result_files`, `compactor_output`, `demo_output`. Setup: `doctor`, `class_archives`.
Package: `commands`.
"""
