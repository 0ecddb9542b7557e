"""The pages, tables and sentences of reports and comparisons."""
