"""Scheduling: loop nodes to fused kernels, and a program that runs them."""

from loopir.schedule.schedule import schedule

__all__ = ["schedule"]
