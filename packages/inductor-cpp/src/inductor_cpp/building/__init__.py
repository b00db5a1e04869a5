"""Builds and loads libraries from translation units."""
