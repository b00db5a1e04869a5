"""Entries of frames as data, for other processes."""
