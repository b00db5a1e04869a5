"""Scheduling: loop nodes to fused kernels, and a program that runs them."""

from .schedule import schedule

__all__ = ["schedule"]
