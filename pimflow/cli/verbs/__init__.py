"""The verbs of the command line, one per file: `add` describes its arguments, `run` executes it.

A verb is found by its file; there is no list. Slow imports belong in `run`.
"""
