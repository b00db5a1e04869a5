"""Choosing configurations by measurement."""
