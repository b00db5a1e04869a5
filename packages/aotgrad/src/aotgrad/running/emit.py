"""The epilogue of a call: write-backs and outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import sympy
import torch
from symshapes import expr_of, is_symbolic, is_wrapper, python_text

from aotgrad.effect_plan import (
    Constant,
    ExternalTensor,
    Mutation,
    Output,
    SameAs,
    Slot,
    View,
    ViewMode,
)

from .python_text import PythonWriter, tuple_text
from .text_functions import (
    as_inference,
    as_multi_output_view,
    write_back,
    write_back_all,
    write_inner,
)

if TYPE_CHECKING:
    from aotgrad.tracing.joint import Joint


# by how a view was made and the grad mode of the text
_GRAD_GUARDS = {
    (ViewMode.NO_GRAD, True): torch.no_grad,
    (ViewMode.RECORDED, False): torch.enable_grad,
    (ViewMode.MULTI_OUTPUT, False): torch.enable_grad,
}


class EpilogueWriter:
    """Writes the epilogue of a call: write-backs, then outputs."""

    def __init__(
        self, out: PythonWriter, joint: Joint, values: dict[int, str], *, grad_enabled: bool = True
    ) -> None:
        self.out = out
        self.joint = joint
        self.values = values  # text of each slot
        self.inputs = inputs = joint.inputs
        self.recorded = {s.name for s in inputs if s.requires_grad}
        self.grad_enabled = grad_enabled  # the mode in which the text runs
        sizes = [s for s in inputs if is_symbolic(s.value)]
        # guards added later may have unified symbols
        self.replace = sizes[0].value.node.shape_env.replace if sizes else lambda size: size
        self.symbols = {expr_of(s.value): s.name for s in sizes}
        for node, text in zip(joint.values, (values[i] for i in sorted(values))):
            if isinstance(node, torch.fx.Node) and is_symbolic(node.meta["val"]):
                self.symbols.setdefault(expr_of(node.meta["val"]), text)

    def external(self, target: ExternalTensor) -> str:
        """Text of an input or constant."""
        if target.index >= 0:
            return self.inputs[target.index].name
        return self.out.name(target.constant, getattr(self.joint.gm, target.constant))

    def size(self, value: Any) -> str:
        """Text of a size, or of any other argument of a view op."""
        if is_symbolic(value):
            value = expr_of(value)
        if isinstance(value, sympy.Basic):
            return python_text(self.replace(value), self.symbols)
        if isinstance(value, tuple):
            return "[" + ", ".join(self.size(v) for v in value) + "]"
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return self.out.name(str(value), value)
        return repr(value)

    def call(self, op: Any, arguments: list[str], kwargs: Iterable[tuple[str, Any]] = ()) -> str:
        """Text of an operator's call."""
        keywords = (f"{name}={self.size(value)}" for name, value in kwargs)
        return f"{self.out.name(str(op), op)}({', '.join([*arguments, *keywords])})"

    # -- write-backs -------------------------------------------------------------------------------

    def mutations(self, in_graph: frozenset[int] = frozenset()) -> None:
        """Writes every mutation; plain copies share one call.

        The compiled graph has written the inputs ``in_graph``, but has not counted versions.
        """
        written = [m for m in self.joint.plan.mutations if m.target.index in in_graph]
        counted = [self.external(m.target) for m in written for _ in range(m.version_bumps)]
        if counted:
            increment = self.out.name("increment_version", torch._C._increment_version)
            self.out(f"{increment}({tuple_text(counted)})")
        remaining = [m for m in self.joint.plan.mutations if m.target.index not in in_graph]
        plain: list[Mutation] = []
        others: list[Mutation] = []
        for mutation in remaining:
            is_plain = _is_plain(mutation) and not self._is_wrapper(mutation)
            (plain if is_plain else others).append(mutation)
        if len(plain) == 1:
            others, plain = [*plain, *others], []
        if plain:
            self._copy_together(plain)
        for mutation in others:
            self._mutate(mutation)

    def _copy_together(self, plain: list[Mutation]) -> None:
        copy = self.out.name("write_back_all", write_back_all)
        targets = ", ".join(self._written(m) for m in plain)
        values = ", ".join(self.values[m.slot.index] for m in plain if m.slot is not None)
        with self.out.within(torch.no_grad if any(map(self._meets_history, plain)) else None):
            self.out(f"{copy}([{targets}], [{values}])")

    def _mutate(self, m: Mutation) -> None:
        name = self.external(m.target)
        lines = [f"{name}.detach_()"] if m.detached else []
        if m.layout is not None:
            sizes, strides, offset = m.layout
            start = "" if offset == 0 else f", {name}.storage_offset() + {self.size(offset)}"
            if strides is None:
                lines.append(f"{name}.resize_({self.size(sizes)})")
            else:
                layout = f"{self.size(sizes)}, {self.size(strides)}{start}"
                lines.append(f"{name}.as_strided_({layout})")
        if m.slot is not None:
            value = self.values[m.slot.index]
            if self._is_wrapper(m) and not m.differentiable:
                write = self.out.name("write_inner", write_inner)
                lines.append(f"{write}({self._written(m)}, {value})")
            elif m.differentiable or not m.version_bumps:
                lines.append(f"{self._written(m)}.copy_({value})")
            else:
                write = self.out.name("write_back", write_back)
                lines.append(f"{write}({self._written(m)}, {value})")
        extra = m.version_bumps - len(lines) + m.detached
        if extra > 0:
            bump = self.out.name("increment_version", torch._C._increment_version)
            lines.append(f"{bump}(({name},) * {extra})")
        needs_guard = not m.differentiable and self._meets_history(m)
        with self.out.within(torch.no_grad if needs_guard else None):
            for line in lines:
                self.out(line)

    def _is_wrapper(self, m: Mutation) -> bool:
        return m.target.index >= 0 and is_wrapper(self.inputs[m.target.index].value)

    def _written(self, m: Mutation) -> str:
        """Text of the tensor to copy into: ``.data`` if eager counts no version (batch norm)."""
        return self.external(m.target) + (
            ".data" if m.version_bumps <= (m.layout is not None) else ""
        )

    def _meets_history(self, m: Mutation) -> bool:
        """Whether autograd would record the write: the target or its new value requires grad."""
        return self.external(m.target) in self.recorded or (
            m.slot is not None and self.values[m.slot.index] in self.recorded
        )

    # -- outputs -----------------------------------------------------------------------------------

    def outputs(self) -> list[str]:
        """Writes the views that are returned; returns the text of each program output."""
        texts: list[str] = []
        for slot in self.joint.plan.inference:
            name = f"inference{slot}"
            self.out(f"{name} = {self.out.name('as_inference', as_inference)}({self.values[slot]})")
            self.values[slot] = name
        for i, output in enumerate(self.joint.plan.outputs):
            texts.append(self._output(i, output, texts))
        for i in self.joint.plan.retains_grad_outputs:
            self.out(f"{texts[i]}.retain_grad()")
        return texts

    def _output(self, i: int, output: Output, earlier: list[str]) -> str:
        match output:
            case Slot(index):
                return self.values[index]
            case ExternalTensor():
                return self.external(output)
            case SameAs(other):
                return earlier[other]
            case Constant(value):
                is_literal = value is None or type(value) in (bool, int, str)
                return repr(value) if is_literal else self.out.name(f"constant_output_{i}", value)
            case View():
                with self.out.within(_GRAD_GUARDS.get((output.mode, self.grad_enabled))):
                    self.out(f"o{i} = {self._view(output)}")
                return f"o{i}"

    def _view(self, view: View) -> str:
        base, steps = view.base, view.steps
        text = self.values[base.index] if isinstance(base, Slot) else self.external(base)
        if view.own_version:
            text = f"{text}.data"
        elif view.mode is ViewMode.DETACHED:
            text = f"{text}.detach()"
        elif view.mode is ViewMode.MULTI_OUTPUT:
            text = f"{self.out.name('as_multi_output_view', as_multi_output_view)}({text})"
        elif not steps and view.mode is not ViewMode.NOT_A_VIEW:
            text = f"{text}[...]"
        for step in steps:
            arguments = [text, *map(self.size, step.args)]
            is_strided = step.target is torch.ops.aten.as_strided.default
            if isinstance(base, Slot) and is_strided and len(arguments) == 4:
                # a backend's result may start anywhere in its storage
                arguments[3] += f" + {self.values[base.index]}.storage_offset()"
            text = self.call(step.target, arguments, step.kwargs)
            if step.item is not None:
                text += f"[{step.item}]"
        is_detached = view.mode is ViewMode.NOT_A_VIEW and (steps or not view.own_version)
        return f"{text}.detach()" if is_detached else text


def _is_plain(m: Mutation) -> bool:
    return m.slot is not None and m.layout is None and not m.differentiable and m.version_bumps <= 1
