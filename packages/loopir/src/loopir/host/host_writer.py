"""Writes the host function of a program as readable Python source."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import sympy
import torch
from primops import Prim
from symshapes import python_text
from torch._ops import OpOverload

from loopir.ir.expr import format_expr
from loopir.ir.host_functions import check_result
from loopir.ir.node import ExternNode, Item, Symbolic, View
from loopir.ir.program import Allocate, ExternCall, Free, Launch, MakeView, Program
from loopir.ir.simplify import ONE
from loopir.ir.text import format_dtype, format_sizes
from loopir.lowering import restride
from loopir.schedule.memory import LIBRARIES

from .runs import Linked, RunStep

INDENT = "    "


CONTIGUOUS_RESULT = {
    f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot")
}


def op_name(op: Callable[..., object]) -> str:
    """The name of an extern operator in reports: ``aten.mm.default``, ``prims.pow``."""
    if isinstance(op, OpOverload):
        return str(op)
    return repr(op) if isinstance(op, Prim) else getattr(op, "__name__", repr(op))


def _buffers_read(program: Program) -> set[str]:
    """The buffers that a step reads or that are results; operators may leave others undefined."""
    found = {output.buffer for output in program.outputs if isinstance(output, View)}
    for step in program.steps:
        if isinstance(step, ExternCall):
            found |= step.node.read_names
        elif isinstance(step, Launch):
            found |= set(step.buffers)
        elif isinstance(step, MakeView):
            found.add(step.view.buffer)
        elif isinstance(step, Allocate) and step.reuses is not None:
            found.add(step.reuses)
    return found


def _size_names(program: Program) -> set[str]:
    """The names of the sizes that are variables of the host function."""
    found: set[object] = {entry for entry in program.inputs if isinstance(entry, sympy.Symbol)}
    found |= {
        s for buffer in program.buffers.values() for size in buffer.shape for s in size.free_symbols
    }
    found |= {
        bind.symbol
        for step in program.steps
        if isinstance(step, ExternCall)
        for bind in step.node.binds
    }
    return set(map(str, found))


@dataclass(slots=True)
class HostWriter:
    """Writes the host function of a program; ``globals`` are the objects that its source names,
    ``makes_slabs`` the device types whose runs allocate the memory for intermediates themselves.
    """

    program: Program
    linked: Linked
    makes_slabs: set[str] = field(default_factory=set)
    globals: dict[str, object] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    constants: list[object] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    named: dict[int, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    devices: dict[torch.device, torch.device] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    checked: set[sympy.Basic] = field(default_factory=set)
    restrided: set[str] = field(default_factory=set)

    def write(self) -> str:
        self.taken |= {kernel.name for kernel in self.program.kernels} | {
            f"run{i}" for i in range(len(self.linked.runs))
        }
        self.taken |= _size_names(self.program) | {"call", "inputs", "math"}
        parameters = [self._parameter(i, entry) for i, entry in enumerate(self.program.inputs)]
        for name, tensor in self.program.constants.items():
            self.globals[self._name(name)] = tensor
        for entry in self.program.inputs:
            if isinstance(entry, str):
                self._bind_sizes(entry)
        self.read = _buffers_read(self.program)
        self._require()
        for step in self.linked.steps:
            getattr(self, f"_write_{type(step).__name__.lower()}")(step)
        results = [self._output(output) for output in self.program.outputs]
        self.lines.append(f"return [{', '.join(results)}]")
        if self.program.freed_inputs:
            self.lines = [f"{', '.join(parameters)}, = inputs", "inputs.clear()", *self.lines]
            parameters = ["inputs"]
        body = "\n".join(INDENT + line for line in self.lines)
        return f"def call({', '.join(parameters)}):\n{body}\n"

    def _name(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self._fresh(name)
        return self.names[name]

    def _fresh(self, wanted: str) -> str:
        """An unused identifier similar to ``wanted``; sizes and kernels keep their names."""
        name = re.sub(r"\W", "_", wanted)
        while name in self.taken or keyword.iskeyword(name):
            name += "_"
        self.taken.add(name)
        return name

    def _global(self, wanted: str, value: object) -> str:
        """The global name of an object; each object has one name."""
        if id(value) not in self.named:
            name = self.named[id(value)] = self._fresh(wanted)
            self.globals[name] = value
        return self.named[id(value)]

    def _parameter(self, position: int, entry: str | sympy.Symbol | None) -> str:
        if isinstance(entry, sympy.Symbol):
            self.bound.add(entry.name)
            return entry.name
        return self._fresh(f"unused{position}") if entry is None else self._name(entry)

    def _bind_sizes(self, name: str) -> None:
        """Reads sizes that aren't inputs from a tensor (C2.5 makes them inputs; C3 graphs written
        by hand may not).
        """
        for dim, size in enumerate(self.program.buffers[name].shape):
            if isinstance(size, sympy.Symbol) and size.name not in self.bound:
                self.bound.add(size.name)
                self.lines.append(f"{size.name} = {self._name(name)}.size({dim})")

    def _write_allocate(self, step: Allocate) -> None:
        buffer = self.program.buffers[step.buffer]
        size, stride = format_sizes(buffer.shape), format_sizes(buffer.stride)
        if step.reuses is None:
            name = self._name(step.buffer)
            self.lines.append(f"{name} = {self._empty(size, stride, buffer.dtype, buffer.device)}")
            return
        old = self.program.buffers[step.reuses]
        dead = self._name(step.reuses)
        if old.shape == buffer.shape and old.stride == buffer.stride:
            self.moved.add(step.reuses)
            self.names[step.buffer] = dead
        else:
            gone = "" if step.in_place else f"; del {dead}"
            self.lines.append(
                f"{self._name(step.buffer)} = {dead}.as_strided({size}, {stride}){gone}  # reuses "
                f"its memory"
            )
            self.restrided.add(self._name(step.buffer))

    def _dtype(self, dtype: torch.dtype) -> str:
        return self._global(format_dtype(dtype), dtype)

    def _device(self, device: torch.device) -> str:
        return self._global(str(device), self.devices.setdefault(device, device))

    def _write_launch(self, step: Launch) -> None:
        kernel = self.program.kernels[step.kernel]
        operands = zip(step.operands, kernel.buffers, strict=True)
        args = [self._part(name, start, declared.numel) for (name, start), declared in operands]
        args += [size.name for size in kernel.sizes]  # type: ignore[attr-defined]
        self.lines.append(f"{kernel.name}({', '.join(args)})")

    def _part(self, buffer: str, start: sympy.Expr, count: sympy.Expr) -> str:
        """``count`` elements of a buffer from ``start`` on; the buffer itself if ``start`` is 0."""
        if start == 0:
            return self._name(buffer)
        return self._strided(View(buffer, (count,), (ONE,), start))

    def _write_runstep(self, step: RunStep) -> None:
        run = self.linked.runs[step.number]
        args = [self._name(name) for name in step.tensors]
        if step.slab != 0 and run.device.type not in self.makes_slabs:
            args.append(self._empty(format_sizes((step.slab,)), "(1,)", torch.uint8, run.device))
        args += [size.name for size in run.sizes]
        names = ", ".join(self.program.kernels[call.source].name for call in run.calls)
        self.lines.append(f"run{step.number}({', '.join(args)})  # {names}")

    def _empty(self, size: str, stride: str, dtype: torch.dtype, device: torch.device) -> str:
        options = f"dtype={self._dtype(dtype)}, device={self._device(device)}"
        empty_strided = self._global("empty_strided", torch.empty_strided)
        return f"{empty_strided}({size}, {stride}, {options})"

    def _write_makeview(self, step: MakeView) -> None:
        self.lines.append(f"{self._name(step.name)} = {self._strided(step.view)}")

    def _strided(self, view: View) -> str:
        base, sizes = (
            self._name(view.buffer),
            ", ".join(map(format_sizes, (view.shape, view.stride))),
        )
        if view.offset == 0:
            return f"{base}.as_strided({sizes})"
        return f"{base}.as_strided({sizes}, {base}.storage_offset() + {format_expr(view.offset)})"

    def _write_free(self, step: Free) -> None:
        if step.buffer not in self.moved:
            self.lines.append(f"del {self._name(step.buffer)}")

    def _write_externcall(self, step: ExternCall) -> None:
        node = step.node
        op = self._global(op_name(node.op), node.op)
        args = [self._argument(arg) for arg in node.args] + [
            f"{key}={self._argument(arg)}" for key, arg in node.kwargs
        ]
        call = f"{op}({', '.join(args)})"
        if node.single:
            target = node.results[0]
            result = self._name(target) if target else "_"
            self.lines.append(f"{result} = {call}" if target or node.binds else call)
        elif any(node.results):
            result = ""
            targets = [self._name(name) if name else f"_{i}" for i, name in enumerate(node.results)]
            self.lines.append(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {call}")
        else:
            result = ""
            self.lines.append(call)
        self._after_call(node, result)

    def _after_call(self, node: ExternNode, single: str) -> None:
        if isinstance(node.op, OpOverload) and node.op.namespace not in LIBRARIES:
            self._check_results(node)
        for bind in node.binds:
            name = node.results[bind.result]
            value = self._name(name) if name else single if node.single else f"_{bind.result}"
            value = value if bind.dim is None else f"{value}.size({bind.dim})"
            self.lines.append(f"{bind.symbol.name} = {value}")
            self.bound.add(bind.symbol.name)
        if node.binds:
            self._require()
        if op_name(node.op) not in CONTIGUOUS_RESULT:
            for name in node.result_names:
                if name in self.read:
                    self._check_strides(name)

    def _require(self) -> None:
        """Writes the checks whose sizes are known now; kernels don't check the sizes of their
        buffers.
        """
        for condition, message in self.program.required:
            if (
                condition not in self.checked
                and set(map(str, condition.free_symbols)) <= self.bound
            ):
                self.checked.add(condition)
                self.lines.append(
                    f"if not {python_text(condition)}: raise RuntimeError({message!r})"
                )

    def _check_results(self, node: ExternNode) -> None:
        """Checks the results of a custom operator: it may not do what its fake implementation says,
        on which kernels rely.
        """
        check = self._global("check_result", check_result)
        where = self._constant((op_name(node.op), node.origins[-1][1] if node.origins else ""))
        bound = {bind.symbol for bind in node.binds}
        for name in node.result_names:
            shape, dtype = self.program.buffers[name].shape, self.program.buffers[name].dtype
            # an opaque workspace; only its library knows its size
            if dtype == torch.uint8 and 0 in shape:
                continue
            if not {s for size in shape for s in size.free_symbols} & bound:
                self.lines.append(
                    f"{check}({self._name(name)}, {format_sizes(shape)}, {self._dtype(dtype)}, "
                    f"{where})"
                )

    def _check_strides(self, result: str) -> None:
        """Restrides a result whose strides are unexpected. Strides of dims of size 1 are ignored:
        they don't matter, and differ between operators and their meta functions.
        """
        buffer = self.program.buffers[result]
        dims = [d for d, size in enumerate(buffer.shape) if size != 1]
        if not dims or any(size == 0 for size in buffer.shape):
            return
        again = self._global("restride", restride)
        size, stride = map(format_sizes, (buffer.shape, buffer.stride))
        name = self._name(result)
        differs = f"{name}.stride() != {stride}"
        if len(dims) < len(buffer.shape):
            differs = " or ".join(
                f"{name}.stride({d}) != {format_expr(buffer.stride[d])}" for d in dims
            )
        self.lines.append(f"if {differs}: {name} = {again}({name}, {size}, {stride})")

    def _argument(self, argument: object) -> str:
        if isinstance(argument, View):
            return self._name(argument.buffer)
        if isinstance(argument, Symbolic):
            return python_text(argument.expr)
        if isinstance(argument, tuple | list):
            return f"[{', '.join(map(self._argument, argument))}]"
        if isinstance(argument, dict):
            items = (f"{key!r}: {self._argument(item)}" for key, item in argument.items())
            return f"{{{', '.join(items)}}}"
        if isinstance(argument, torch.dtype):
            return self._dtype(argument)
        if isinstance(argument, torch.device):
            return self._device(argument)
        if isinstance(argument, bool | int | str | None) or (
            isinstance(argument, float) and argument - argument == 0
        ):
            return repr(argument)
        return self._constant(argument)

    def _constant(self, value: object) -> str:
        self.constants.append(value)
        return self._global(f"constant{len(self.constants) - 1}", value)

    def _output(self, output: object) -> str:
        if isinstance(output, Item):
            return f"{self._strided(output)}.item()"
        if isinstance(output, View):
            return self._result(output)
        return format_expr(output) if isinstance(output, sympy.Expr) else self._argument(output)

    def _result(self, view: View) -> str:
        """A result of the call; only a part of an input is returned as a view, because autograd
        refuses some writes to views.
        """
        buffer, name = self.program.buffers[view.buffer], self._name(view.buffer)
        if view.is_whole(buffer):
            return f"{name}.data" if name in self.restrided else name
        is_own = (
            view.buffer not in self.program.inputs and view.buffer not in self.program.constants
        )
        return f"{self._strided(view)}.data" if is_own else self._strided(view)
