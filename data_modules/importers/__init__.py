"""Importers: one file per kind of source. Each writes a pair dataset; nothing else reads foreign formats."""
