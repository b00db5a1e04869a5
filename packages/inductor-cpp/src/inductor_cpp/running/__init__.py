"""Calls of oneDNN with packed parameters."""
