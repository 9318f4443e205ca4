"""The verbs of the command line, one per file: `add` describes its arguments, `run` carries it out.

A verb is found by its file; nothing lists them. Whatever takes long to import is imported by `run`.
"""
