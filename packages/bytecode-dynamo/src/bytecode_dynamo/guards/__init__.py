"""What was read while capturing, and whether it is still so."""
