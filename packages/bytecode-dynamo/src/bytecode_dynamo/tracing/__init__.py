"""Symbolic evaluation: the evaluator, opcodes, and calls."""
