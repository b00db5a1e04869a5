"""Generates Triton source from loop kernels: passes, tiling, and the text of each instruction."""
