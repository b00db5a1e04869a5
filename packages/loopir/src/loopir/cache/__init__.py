"""Caches shared by processes: built kernels, and the programs of graphs."""
