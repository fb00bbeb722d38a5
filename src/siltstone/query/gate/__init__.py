"""The gate: parses a user's SQL, checks it against allow lists and rewrites it. Engines get only the rewritten text.

::

    user's text    -- tokenizer --> tokens -- parser --> tree -- syntax, sql_writer --> rewritten text
                                      |                   |
                                  round_trip       tree_comparison
                                      |                   |
    rewritten text -- tokenizer --> tokens -- parser --> tree

* `admit` runs these steps and caches their result. `tokenizer` and `parser` follow Spark's rules.
* `allowlist` has the allowed functions, types, nodes and arguments, as data. `syntax` checks a tree against it.
* `sql_writer` writes the tree.
* `round_trip` rejects a rewrite that lost a token, `tree_comparison` one with another tree.
* `parameters` checks the values of placeholders, `checked_query` is the result.
* `column_check` finds misspelt columns, `cross_join_guard` rejects joins that Spark cannot interrupt.
* `row_condition` admits a condition on one row.
"""
