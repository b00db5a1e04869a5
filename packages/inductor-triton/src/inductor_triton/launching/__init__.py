"""Compiling kernels and launching them: driver, launch plans, and an interpreter without a GPU."""
