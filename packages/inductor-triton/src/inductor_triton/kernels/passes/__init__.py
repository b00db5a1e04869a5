"""Rewrites from kernel to kernel."""
