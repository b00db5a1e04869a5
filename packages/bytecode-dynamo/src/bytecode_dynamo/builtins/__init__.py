"""What known callables do to trackers: Python's built-ins, operators, torch functions."""
