"""Counts of what happened since the last reset."""

from __future__ import annotations

from collections import Counter

counters: Counter[str] = Counter()
"""graphs, kept_frames (frames that another process has captured), graph_breaks, recompiles,
captured_calls, fallbacks, reruns (calls in eager mode after
their graph raised), failed_graphs (compiled graphs that raised where eager mode does not) and
``failed_graphs: <exception>`` for each cause.
"""
