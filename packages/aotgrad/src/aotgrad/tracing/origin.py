"""Finds the user's line and the module that called the op being traced, by reading the Python
stack.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import symshapes
import torch
from torch import nn

_OURS = (
    f"{Path(torch.__file__).parent}/",
    f"{Path(str(symshapes.__file__)).parent}/",
    f"{Path(__file__).parents[1]}/",
)
_MODULE_CALL = nn.Module._call_impl.__code__  # type: ignore[attr-defined]


class Origins:
    """Describes the origin of ops from the stack frames between the frame that starts a program and
    the caller.
    """

    def __init__(self) -> None:
        self._entry: FrameType | None = sys._getframe(1)
        # names of the modules below each root, by id
        self._names: dict[int, tuple[nn.Module, dict[int, str]]] = {}

    def close(self) -> None:
        """Ends the program: releases its frames."""
        self._entry = None

    def meta(self) -> dict[str, Any]:
        """The metadata of the current op: ``stack_trace`` as in C1.5, and ``nn_module_stack``,
        which maps names to (path, class) of the modules, outermost first.
        """
        lines: list[str] = []
        modules: list[nn.Module] = []
        frame = sys._getframe(1) if self._entry is not None else None
        while frame is not None and frame is not self._entry:
            code = frame.f_code
            if code is _MODULE_CALL:
                modules.append(frame.f_locals["self"])
            elif not code.co_filename.startswith((*_OURS, "<")):
                text = linecache.getline(code.co_filename, frame.f_lineno).strip()
                lines.append(
                    f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n    '
                    f"{text}\n"
                )
            frame = frame.f_back
        found: dict[str, Any] = {"stack_trace": "".join(reversed(lines))} if lines else {}
        if modules:
            paths = self._paths(modules[-1])
            stack = [(paths.get(id(m), type(m).__name__), type(m)) for m in reversed(modules)]
            found["nn_module_stack"] = {
                path or type(modules[-1]).__name__: (path, kind) for path, kind in stack
            }
        return found

    def _paths(self, root: nn.Module) -> dict[int, str]:
        if id(root) not in self._names:
            self._names[id(root)] = (root, {id(m): name for name, m in root.named_modules()})
        return self._names[id(root)][1]
