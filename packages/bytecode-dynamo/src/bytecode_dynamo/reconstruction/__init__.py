"""Instructions that load, call and build values again."""
