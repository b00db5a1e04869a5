"""Writes the Python source of one graph's prologue and epilogue: only what this graph needs,
nothing per call in loops.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from symshapes import expr_of, inner_tensors, is_symbolic, is_wrapper, map_inner, python_text

from aotgrad.effect_plan import Constant, Mutation, Output, SameAs, Slot, Target, View, ViewMode
from aotgrad.tracing.joint import Joint

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]

_COUNT = itertools.count(1)


@dataclass(slots=True)
class Source:
    """Python text under construction, and the objects that it names.

    Attributes:
        lines: the text.
        namespace: global names of the text.
        taken: names that no global may have: those of nodes, which are local.
    """

    lines: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    _indent: int = 0

    def __call__(self, line: str = "") -> None:
        self.lines.append("    " * self._indent + line if line else "")

    def enter(self, line: str) -> None:
        """A line that opens a block."""
        self(line)
        self._indent += 1

    def leave(self) -> None:
        """Closes a block."""
        self._indent -= 1

    def name(self, stem: str, value: Any) -> str:
        """A global name for an object; the same object keeps its name."""
        stem = "".join(c if c.isalnum() else "_" for c in stem)
        name, n = stem, 0
        while name in self.taken or (name in self.namespace and self.namespace[name] is not value):
            n += 1
            name = f"{stem}_{n}"
        self.namespace[name] = value
        return name

    def pass_together(self, names: Sequence[str]) -> None:
        """Has the text take and pass on these parameters as one tuple, where it does nothing else
        with any of them.
        """
        together = ", ".join(names)
        # of a call, or a tuple by itself
        parameters = re.compile(rf"(\w?)\({re.escape(together)}\)")
        lines = [
            parameters.sub(lambda found: f"{found[1]}(*inputs)" if found[1] else "inputs", line)
            for line in self.lines
        ]
        if not {"inputs", *names} & set(
            re.findall(r"\w+", "\n".join(self.lines).replace(f"({together})", ""))
        ):
            self.lines = lines

    def load(self, name: str) -> tuple[Callable[..., Any], str]:
        """The function of this name that the text defines, and the text."""
        text = "\n".join(self.lines) + "\n"
        return load_text(text, self.namespace, name), text


def load_text(text: str, namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    """The function of this name that a text defines; tracebacks show its lines."""
    filename = f"<aotgrad {next(_COUNT)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
    return namespace[name]


def tuple_text(items: Iterable[str]) -> str:
    """Python text of a tuple."""
    items = list(items)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


class EffectWriter:
    """Writes the epilogue: write-backs, then outputs."""

    def __init__(
        self, out: Source, joint: Joint, values: dict[int, str], *, grad_enabled: bool = True
    ) -> None:
        self.out = out
        self.joint = joint
        self.values = values  # slot -> Python text
        self.inputs = inputs = joint.inputs
        self.grad_enabled = grad_enabled  # in which mode the text runs
        sizes = [s for s in inputs if is_symbolic(s.value)]
        self.replace = sizes[0].value.node.shape_env.replace if sizes else lambda size: size
        self.symbols = {expr_of(s.value): s.name for s in sizes}
        outputs: Any = joint.gm.graph.output_node().args[0]
        for node, text in zip(outputs, (values[i] for i in sorted(values))):
            if isinstance(node, torch.fx.Node) and is_symbolic(node.meta["val"]):
                self.symbols.setdefault(expr_of(node.meta["val"]), text)

    def target(self, target: Target) -> str:
        """Text that names a tensor from before the call."""
        if target.index >= 0:
            return self.inputs[target.index].name
        return self.out.name(target.constant, getattr(self.joint.gm, target.constant))

    def size(self, value: Any) -> str:
        """Text of a size, or of any other argument of a view op."""
        if isinstance(value, sympy.Basic):
            # a symbol may have proved to be another since
            return python_text(self.replace(value), self.symbols)
        if isinstance(value, tuple):
            return "[" + ", ".join(self.size(v) for v in value) + "]"
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return self.out.name(str(value), value)
        return repr(value)

    # -- write-backs -------------------------------------------------------------------------------

    def mutations(self, done: frozenset[int] = frozenset()) -> None:
        """Writes every mutation; plain copies go in one call. Those to the inputs ``done`` were,
        but no version counts them.
        """
        written = [m for m in self.joint.plan.mutations if m.target.index in done]
        counted = [self.target(m.target) for m in written for _ in range(m.bumps)]
        if counted:
            increment = self.out.name("increment_version", torch._C._increment_version)
            self.out(f"{increment}({tuple_text(counted)})")
        left = [m for m in self.joint.plan.mutations if m.target.index not in done]
        plain = [m for m in left if _is_plain(m) and not self._is_wrapper(m)]
        others = [m for m in left if m not in plain]
        if len(plain) == 1:
            others, plain = [*plain, *others], []
        if plain:
            self._copy_together(plain)
        for mutation in others:
            self._mutate(mutation)

    def _copy_together(self, plain: list[Mutation]) -> None:
        copy = self.out.name("foreach_copy_", torch._foreach_copy_)
        targets = ", ".join(self._written(m) for m in plain)
        values = ", ".join(self.values[m.slot.index] for m in plain if m.slot is not None)
        needs_guard = any(self._meets_history(m) for m in plain)
        self._under_no_grad(needs_guard, [f"{copy}([{targets}], [{values}])"])

    def _mutate(self, m: Mutation) -> None:
        name = self.target(m.target)
        lines = [f"{name}.detach_()"] if m.detached else []
        if m.layout is not None:
            sizes, strides, offset = m.layout
            moved = "" if offset == 0 else f", {name}.storage_offset() + {self.size(offset)}"
            resized = f"{name}.resize_({self.size(sizes)})"
            lines.append(
                f"{name}.as_strided_({self.size(sizes)}, {self.size(strides)}{moved})"
                if strides is not None
                else resized
            )
        if m.slot is not None:
            value = self.values[m.slot.index]
            if self._is_wrapper(m) and not m.differentiable:
                lines.append(
                    f"{self.out.name('write_inner', write_inner)}({self._written(m)}, {value})"
                )
            else:
                lines.append(f"{self._written(m)}.copy_({value})")
        extra = m.bumps - len(lines) + m.detached
        if extra > 0:
            bump = self.out.name("increment_version", torch._C._increment_version)
            lines.append(f"{bump}(({name},) * {extra})")
        self._under_no_grad(not m.differentiable and self._meets_history(m), lines)

    def _is_wrapper(self, m: Mutation) -> bool:
        return m.target.index >= 0 and is_wrapper(self.inputs[m.target.index].value)

    def _written(self, m: Mutation) -> str:
        """Text of the tensor to copy into; ``.data`` where eager writes without counting a version
        (batch norm).
        """
        return self.target(m.target) + (".data" if m.bumps <= (m.layout is not None) else "")

    def _meets_history(self, m: Mutation) -> bool:
        """Whether the write would be recorded: the target requires grad, or its new value is an
        input that does.
        """
        recorded = {s.name for s in self.inputs if s.requires_grad}
        return self.target(m.target) in recorded or (
            m.slot is not None and self.values[m.slot.index] in recorded
        )

    def _under_no_grad(self, needed: bool, lines: list[str]) -> None:
        if needed:
            self.out.enter(f"with {self.out.name('no_grad', torch.no_grad)}():")
        for line in lines:
            self.out(line)
        if needed:
            self.out.leave()

    # -- outputs -----------------------------------------------------------------------------------

    def outputs(self) -> list[str]:
        """Writes the regenerated views; the text of each program output."""
        texts: list[str] = []
        for slot in self.joint.plan.inference:
            name = f"inference{slot}"
            self.out(f"{name} = {self.out.name('as_inference', as_inference)}({self.values[slot]})")
            self.values[slot] = name
        for i, output in enumerate(self.joint.plan.outputs):
            texts.append(self._output(i, output, texts))
        for i in self.joint.plan.retaining:
            self.out(f"{texts[i]}.retain_grad()")
        return texts

    def _output(self, i: int, output: Output, earlier: list[str]) -> str:
        match output:
            case Slot(index):
                return self.values[index]
            case Target():
                return self.target(output)
            case SameAs(other):
                return earlier[other]
            case Constant(value):
                is_literal = value is None or type(value) in (bool, int, str)
                return repr(value) if is_literal else self.out.name(f"constant_output_{i}", value)
            case View():
                name = f"o{i}"
                self._in_mode(output.mode, f"{name} = {self._view(output)}")
                return name

    def _in_mode(self, mode: ViewMode, line: str) -> None:
        recorded = mode in (ViewMode.RECORDED, ViewMode.ONE_OF_SEVERAL)
        guard = torch.no_grad if mode is ViewMode.NO_GRAD and self.grad_enabled else None
        guard = torch.enable_grad if recorded and not self.grad_enabled else guard
        if guard is not None:
            self.out.enter(f"with {self.out.name(guard.__name__, guard)}():")
        self.out(line)
        if guard is not None:
            self.out.leave()

    def _view(self, view: View) -> str:
        base, steps = view.base, view.steps
        text = self.values[base.index] if isinstance(base, Slot) else self.target(base)
        if view.apart:
            text = f"{text}.data"
        elif view.mode is ViewMode.DETACHED:
            text = f"{text}.detach()"
        elif view.mode is ViewMode.ONE_OF_SEVERAL:
            text = f"{self.out.name('one_of_several', one_of_several)}({text})"
        elif not steps and view.mode is not ViewMode.SEVERED:
            text = f"{text}[...]"
        for step in steps:
            function = self.out.name(str(step.target), step.target)
            arguments = [
                text,
                *(self.size(a) for a in step.args),
                *(f"{k}={self.size(v)}" for k, v in step.kwargs),
            ]
            if (
                isinstance(base, Slot)
                and step.target is torch.ops.aten.as_strided.default
                and len(arguments) == 4
            ):
                # what a backend computes may begin anywhere
                arguments[3] += f" + {self.values[base.index]}.storage_offset()"
            text = f"{function}({', '.join(arguments)})"
            if step.item is not None:
                text += f"[{step.item}]"
        if view.mode is ViewMode.SEVERED and (steps or not view.apart):
            return f"{text}.detach()"
        return text


def as_inference(value: torch.Tensor) -> torch.Tensor:
    """An inference tensor with the memory of a tensor: what the program made under
    ``torch.inference_mode()``.
    """
    if value.is_inference():
        return value
    with torch.inference_mode():
        return map_inner(
            lambda inner: torch.empty(0, dtype=inner.dtype, device=inner.device).set_(inner), value
        )


def one_of_several(value: torch.Tensor) -> torch.Tensor:
    """A view to which autograd refuses to write, as it does to a result of ``split``."""
    view = value[...]  # view_as gives dimensions of one element other strides
    _autograd._set_creation_meta(view, _autograd.CreationMeta.MULTI_OUTPUT_NODE)
    return view


def write_inner(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copies the tensors inside one of a wrapper subclass into those of another."""
    for inner, held in zip(inner_tensors(target), inner_tensors(value)):
        if inner is not held:
            inner.copy_(held)
    torch._C._increment_version((target,))  # type: ignore[attr-defined]


def _is_plain(m: Mutation) -> bool:
    return m.slot is not None and m.layout is None and not m.differentiable and m.bumps <= 1
