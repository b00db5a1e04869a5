"""The user line from which a graph node comes."""

from __future__ import annotations

import functools
import re

import torch.fx


def user_line(node: torch.fx.Node) -> str:
    """The innermost user line recorded for a node, with file and line number; empty if there is
    none.
    """
    return _innermost(node.meta.get("stack_trace") or "")


@functools.lru_cache(10_000)
def _innermost(trace: str) -> str:
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    place = re.match(r'File ".*?([^/\\\\"]+)", line (\d+)', lines[-2]) if len(lines) > 1 else None
    return f"{lines[-1]}  ({place[1]}:{place[2]})" if place else lines[-1] if lines else ""
