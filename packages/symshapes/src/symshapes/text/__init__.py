"""Text forms: a subset of Python with a version, read with Python's own parser."""
