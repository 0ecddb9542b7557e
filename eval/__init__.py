"""Agreement with people: statistics, reliability and ceilings, listening checks, judges, reports."""
