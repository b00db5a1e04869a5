"""Traces programs with or without autograd; a ``TraceSpec`` can also trace its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sympy
import torch
from symshapes import (
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    as_traced,
    deferred,
    expr_of,
    is_fake,
    keep_ragged_size,
    map_inner,
    mode_of,
    quiet,
)
from torch.utils import _pytree as pytree

from aotgrad.effect_plan import ExternalTensor, InputSpec
from aotgrad.tracing.aliased_inputs import with_input_views
from aotgrad.tracing.effects import TracedProgram, TracedTensor, gradient_edge, plan_effects
from aotgrad.tracing.functional import current_value
from aotgrad.tracing.joint import Joint, Program, trace_joint, trace_values
from aotgrad.tracing.opaque_backward import learn_opaque_backward
from aotgrad.tracing.tracer import Tracer

from .passes import clean

_autograd: Any = torch._C._autograd  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class AutocastState:
    """The autocast state around a trace, so that a later trace runs in the same."""

    devices: tuple[tuple[str, bool, torch.dtype], ...] = field(
        default_factory=lambda: tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
        )
    )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within, autocast is as it was."""
        before = AutocastState()
        self._apply()
        try:
            yield
        finally:
            before._apply()

    def _apply(self) -> None:
        for device, enabled, dtype in self.devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Within, the caller's hooks on saved tensors do not see what is saved."""
    hooks = []
    while (top := _autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """How to trace a program.

    Attributes:
        program: what is traced.
        make_inputs: fresh fakes of all inputs; called once per trace.
        fake_mode: the mode of the fakes.
        grad_enabled: the grad mode that the program starts in.
        autocast: the autocast state that it starts in.
    """

    program: Program
    make_inputs: Callable[[], tuple[InputSpec, ...]]
    fake_mode: FakeTensorMode
    grad_enabled: bool
    autocast: AutocastState = field(default_factory=AutocastState)

    def trace(self) -> Joint:
        """The joint graph."""
        try:
            return self._trace()
        except Exception as error:
            if not learn_opaque_backward(error):
                raise
        return self.trace()

    def _trace(self) -> Joint:
        unwatched = torch.autograd.set_detect_anomaly(False)
        with (
            deferred(),
            torch.inference_mode(False),
            self.autocast.restored(),
            without_saved_tensors_hooks(),
            unwatched,
            quiet,
        ):
            return trace_joint(
                self.program, self.make_inputs(), self.fake_mode, grad_enabled=self.grad_enabled
            )

    def with_sizes(self, sizes: Mapping[Any, Any]) -> TraceSpec:
        """The same for inputs whose size symbols stand for these numbers."""
        fake_mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))

        def sized(fake: Any) -> torch.Tensor:
            layout = (
                [evaluate_size(expr_of(n), sizes) for n in ns] for ns in (fake.shape, fake.stride())
            )
            return fake_mode.empty(*layout, dtype=fake.dtype, device=fake.fake_device)

        def make_inputs() -> tuple[InputSpec, ...]:
            specs = self.make_inputs()
            values = [
                map_inner(sized, s.value).requires_grad_(s.requires_grad)
                if s.is_tensor
                else evaluate_size(expr_of(s.value), sizes)
                for s in specs
            ]
            return tuple(replace(s, value=value) for s, value in zip(specs, values))

        return replace(self, make_inputs=make_inputs, fake_mode=fake_mode)

    def gradient(self, joint: Joint, tangents_require_grad: Sequence[bool | None]) -> TraceSpec:
        """The program that computes the gradients of this one.

        Its inputs are the inputs and then the tangents of ``joint``, and their ``unbacked_sizes``;
        its outputs the gradients. A trace of it starts with what ``joint``'s trace recorded
        forward: nodes with one ``meta["position"]`` compute one value, and a size that only the
        running program knows has one symbol.

        Args:
            joint: a trace of this program; it writes to no input that requires grad.
            tangents_require_grad: for each tangent of ``joint``, None if it is absent.
        """
        present = [i for i, grad in enumerate(tangents_require_grad) if grad is not None]
        all_tangents = joint.tangents
        tangents = [all_tangents[i] for i in present]
        slots = [joint.plan.differentiable[i] for i in present]
        of_tangents = unbacked_sizes([t.meta["val"] for t in tangents], self.fake_mode.shape_env)
        sizes = [InputSpec(f"{size}_of_{len(joint.inputs)}", size) for size, _, _ in of_tangents]

        def make_inputs() -> tuple[InputSpec, ...]:
            grads = (tangents_require_grad[i] is True for i in present)
            values = [t.meta["val"] for t in tangents]
            fakes = [fresh_fake(v, grad, mode_of(v)) for v, grad in zip(values, grads)]
            given = [
                # a name that no other level has
                InputSpec(f"{t.name}_of_{len(joint.inputs)}", x, requires_grad=x.requires_grad)
                for t, x in zip(tangents, fakes)
            ]
            return (*self.make_inputs(), *given, *sizes)

        program = partial(_run_gradient, self, joint, slots, len(sizes))
        return TraceSpec(program, make_inputs, self.fake_mode, True, self.autocast)


def _run_gradient(
    spec: TraceSpec, joint: Joint, slots: Sequence[int], num_sizes: int, inputs: Sequence[Any],
    tracer: Tracer, wrap_constant: Callable[[torch.Tensor], torch.Tensor],
) -> Any:  # fmt: skip
    """Runs a program and differentiates its values at ``slots``: see ``TraceSpec.gradient``."""
    split = len(inputs) - len(slots) - num_sizes
    specs, written = joint.inputs[:split], {m.target.index for m in joint.plan.mutations}
    tracer.position = -(1 << 40)  # copies are part of no other trace
    primals = [x.clone() if i in written else x for i, x in enumerate(inputs[:split])]
    edges = [
        gradient_edge(x) if s.view_of is None and _requires_grad(x) else None
        for x, s in zip(primals, specs)
    ]
    tracer.position = 0
    primals = with_input_views(primals, specs)
    tensors = [
        _traced(i, x, e, s) for i, (x, e, s) in enumerate(zip(primals, edges, specs)) if s.is_tensor
    ]
    again = spec.fake_mode.shape_env.reuse_unbacked(joint.unbacked)
    with torch.set_grad_enabled(spec.grad_enabled), again:
        result = spec.program(primals, tracer, wrap_constant)
    outputs, out_spec = pytree.tree_flatten(result)
    tracer.origin = None
    _, values = plan_effects(TracedProgram(tuple(tensors), tuple(outputs), out_spec), tracer)
    edge_of = {
        t.target.index: gradient_edge(t.wrapper) if t.became_leaf else t.edge for t in tensors
    }
    with torch._C._DisableAutocast(), torch.autograd.set_multithreading_enabled(False):
        return torch.autograd.grad(
            [values[slot] for slot in slots],
            [edge_of[i] for i in joint.gradients_of],
            inputs[split : split + len(slots)],
            create_graph=True,
            allow_unused=True,
        )


def unbacked_sizes(tensors: Sequence[Any], env: ShapeEnv) -> list[tuple[torch.SymInt, int, int]]:
    """The sizes of fake tensors that only the running program knows, once each: the size, which
    tensor has it, and where.
    """
    found: dict[Any, tuple[Any, int, int]] = {}
    for i, tensor in enumerate(tensors):
        for dim, size in enumerate(tensor.shape):
            if env.is_unbacked_symint(expr_of(size)):
                found.setdefault(expr_of(size), (size, i, dim))
    return list(found.values())


def evaluate_size(value: Any, sizes: Mapping[Any, Any]) -> Any:
    """A size expression with numbers for its symbols; anything else as it is."""
    if not isinstance(value, sympy.Basic):
        return value
    number: Any = value.xreplace({symbol: sympy.sympify(n) for symbol, n in sizes.items()})
    return int(number) if number.is_Integer else float(number) if number.is_Float else number


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _traced(i: int, wrapper: torch.Tensor, edge: Any, spec: InputSpec) -> TracedTensor:
    before = current_value(wrapper)
    if spec.view_of is not None:
        before.requires_grad_(wrapper.requires_grad)
    is_view, version = spec.view_of is not None, wrapper._version
    return TracedTensor(ExternalTensor(i), before, wrapper, version, edge, is_input_view=is_view)


def trace_program(program: Program, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The functional graph (C2) of a program, cleaned: its flat outputs, then the new values of
    inputs that it writes to.

    ``inputs`` are tensors (real or fake), SymInts or numbers.
    """
    fake_mode = mode_for(inputs)
    specs = [
        InputSpec(f"x{i}", fresh_fake(x, False, fake_mode) if isinstance(x, torch.Tensor) else x)
        for i, x in enumerate(inputs)
    ]
    gm = trace_values(program, specs, fake_mode)
    clean(gm)
    gm.recompile()
    return gm


def mode_for(values: Sequence[Any]) -> FakeTensorMode:
    """The mode of the first fake among ``values``; without one, a new mode over the environment of
    their sizes.
    """
    fake = next(filter(is_fake, values), None)
    if fake is not None:
        return mode_of(fake)
    size = next(
        (v for v in values if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool))), None
    )
    return FakeTensorMode(ShapeEnv(allow_unbacked=True) if size is None else size.node.shape_env)


def fresh_fake(value: torch.Tensor, requires_grad: bool, fake_mode: FakeTensorMode) -> torch.Tensor:
    """A new leaf fake like a real or fake tensor: traces must not see what other traces did to
    it.
    """

    def fresh(inner: torch.Tensor) -> torch.Tensor:
        if not isinstance(inner, FakeTensor):
            inner = fake_mode.from_real(inner.detach())
        made = fake_mode.empty(
            inner.shape, inner.stride(), dtype=inner.dtype, device=inner.fake_device
        )
        keep_ragged_size(made, inner)
        return made

    return as_traced(map_inner(fresh, value)).requires_grad_(requires_grad)
