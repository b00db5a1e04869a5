"""The captured graph under construction, its checker (C1), and its text."""
