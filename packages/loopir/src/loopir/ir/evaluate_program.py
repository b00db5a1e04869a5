"""The meaning of a scheduled program (contract C5): its steps, one after the other.

Memory is taken as the program says, so that a result that overwrites a living value shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from primops import Prim
from symshapes import python_text

from .evaluate import evaluate_kernel
from .kernel import Kernel
from .node import Item, Symbolic, View
from .program import Allocate, ExternCall, Free, Launch, MakeView, Program
from .template import Template, evaluate_template

PARTS = 8
"""A kernel that works in place runs in so many parts: what a point overwrites, others may read."""
LaunchKernel = Callable[[int, Sequence[torch.Tensor], Sequence[int]], None]
"""Called with the number of a kernel, the tensors of its buffers, and its sizes."""


def evaluate_launch(program: Program) -> LaunchKernel:
    """Runs kernels by the evaluator of loop IR."""

    def launch(number: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        kernel = program.kernels[number]
        places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        if len(set(places)) < len(places) and isinstance(kernel, Kernel):
            evaluate_kernel(kernel, tensors, sizes, parts=PARTS)
        elif isinstance(kernel, Template):
            evaluate_template(kernel, tensors, sizes)
        else:
            evaluate_kernel(kernel, tensors, sizes)

    return launch


def evaluate_program(
    program: Program, inputs: Sequence[Any], launch: LaunchKernel | None = None
) -> tuple[Any, ...]:
    """The outputs of a program on real inputs. ``launch`` runs a kernel; by default the evaluator
    does.
    """
    run = _Run(program, launch or evaluate_launch(program))
    run.bind(inputs)
    for step in program.steps:
        run.step(step)
    return tuple(map(run.output, program.outputs))


@dataclass
class _Run:
    program: Program
    launch: LaunchKernel
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=dict)

    def bind(self, inputs: Sequence[Any]) -> None:
        self.tensors.update(self.program.constants)
        for entry, value in zip(self.program.inputs, inputs, strict=True):
            if isinstance(entry, sympy.Symbol):
                self.sizes[entry.name] = value
            elif entry is not None and entry in self.program.numbers:
                device = self.program.buffers[entry].device
                self.tensors[entry] = torch.full((), value, dtype=torch.float64, device=device)
            elif entry is not None:
                self.tensors[entry] = value
                self._bind_sizes(self.program.buffers[entry].shape, value.shape)

    def _bind_sizes(self, shape: Sequence[Any], actual: Sequence[int]) -> None:
        for size, number in zip(shape, actual, strict=True):
            if isinstance(size, sympy.Symbol):
                self.sizes.setdefault(size.name, number)

    def number(self, expr: Any) -> Any:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        return eval(python_text(expr), {"math": math, **self.sizes})

    def numbers(self, exprs: Sequence[Any]) -> tuple[int, ...]:
        return tuple(map(self.number, exprs))

    def strided(self, view: View) -> torch.Tensor:
        base = self.tensors[view.buffer]
        start = base.storage_offset() + self.number(view.offset)
        return base.as_strided(self.numbers(view.shape), self.numbers(view.stride), start)

    def step(self, step: object) -> None:
        if isinstance(step, Allocate):
            self._allocate(step)
        elif isinstance(step, Launch):
            self._launch(step)
        elif isinstance(step, ExternCall):
            self._call(step)
        elif isinstance(step, MakeView):
            self.tensors[step.name] = self.strided(step.view)
        elif isinstance(step, Free):
            self.tensors.pop(step.buffer, None)

    def _allocate(self, step: Allocate) -> None:
        buffer = self.program.buffers[step.buffer]
        shape, stride = self.numbers(buffer.shape), self.numbers(buffer.stride)
        if step.reuses is None:
            made = torch.empty_strided(shape, stride, dtype=buffer.dtype, device=buffer.device)
        else:
            made = self.tensors[step.reuses].as_strided(shape, stride)
        self.tensors[step.buffer] = made

    def _launch(self, step: Launch) -> None:
        kernel = self.program.kernels[step.kernel]
        tensors = []
        for (name, start), declared in zip(step.operands, kernel.buffers, strict=True):
            tensor = self.tensors[name]
            if start != 0:
                count, offset = self.number(declared.numel), self.number(start)
                tensor = tensor.as_strided((count,), (1,), tensor.storage_offset() + offset)
            tensors.append(tensor)
        self.launch(step.kernel, tensors, self.numbers(kernel.sizes))

    def _call(self, step: ExternCall) -> None:
        node = step.node
        is_control = isinstance(node.op, Prim) and "control" in node.op.tags
        op: Any = node.op.reference if is_control else node.op  # type: ignore[union-attr]
        result = op(*map(self.argument, node.args), **{k: self.argument(v) for k, v in node.kwargs})
        results = [result] if node.single else list(result)
        for bind in node.binds:
            value = results[bind.result]
            self.sizes[bind.symbol.name] = value if bind.dim is None else value.size(bind.dim)
        for name, value in zip(node.results, results):
            if name is not None:
                self.tensors[name] = self._laid_out(name, value)

    def _laid_out(self, name: str, value: torch.Tensor) -> torch.Tensor:
        stride = self.numbers(self.program.buffers[name].stride)
        if value.stride() == stride:
            return value
        made = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
        return made.copy_(value)

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, View):
            return self.strided(argument)
        if isinstance(argument, Symbolic):
            return self.number(argument.expr)
        if isinstance(argument, (tuple, list)):
            return [self.argument(item) for item in argument]
        if isinstance(argument, dict):
            return {key: self.argument(item) for key, item in argument.items()}
        return argument

    def output(self, output: Any) -> Any:
        if isinstance(output, Item):
            return self.strided(output).item()
        if isinstance(output, View):
            return self.strided(output)
        return self.number(output) if isinstance(output, sympy.Expr) else self.argument(output)
