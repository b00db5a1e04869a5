"""Chooses configurations by measurement."""
