"""Attention as tiles: kernels generated from functions of scores and positions."""
