"""Reports as types: what commands write as JSON, and what tables, pages, Markdown and terminal output are views of.

Each field says what it is, in which unit, and when it is null; docs/reference/report-fields.md is made of these types.
The files are strict JSON.
"""
