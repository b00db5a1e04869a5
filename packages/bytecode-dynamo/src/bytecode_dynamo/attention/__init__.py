"""Attention with functions of scores and positions: one operator, and its functions as text."""
