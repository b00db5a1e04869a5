"""Compiled programs as files."""
