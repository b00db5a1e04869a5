"""Compiles and launches kernels: driver, launch plans, and an interpreter that needs no GPU."""
