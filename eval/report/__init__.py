"""Reports as types. Each output has one renderer: `results` JSON and CSV, `views` and `other_views` the terminal,
``pages`` pages and Markdown.

Each field says what it is, in which unit, and when it is null; docs/reference/reports.md is made of these types.
The files are strict JSON.
"""
