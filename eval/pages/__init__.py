"""What people look at: the pages, tables and sentences of reports and comparisons."""
