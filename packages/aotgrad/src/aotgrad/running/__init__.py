"""Compiled calls: the generated autograd function, write-backs, aliases, and eager fallbacks."""
