"""From translation units to loaded libraries."""
