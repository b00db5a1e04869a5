"""A program and what has been compiled from it: one variant per grad mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from symshapes import FakeTensorMode, ShapeEnv, SymbolicError, deferred

from aotgrad.effect_plan import InputSpec
from aotgrad.errors import CompilerError, Unsupported
from aotgrad.graphs.patterns import PATTERNS
from aotgrad.graphs.trace import TraceSpec, fresh_fake
from aotgrad.running.fallback import Fallback, is_transformed
from aotgrad.running.prologue import Runtime
from aotgrad.tracing.aliased_inputs import Layout, OverlapDispatcher
from aotgrad.tracing.joint import Joint, Program

from .compile import CompileOptions, compile_joint, deferred_backward, optimise_joint
from .compiled_cache import (
    CachedProgram,
    CacheEntry,
    DeferredBackward,
    dump,
    look_up,
    revive,
)


@dataclass(slots=True)
class Compilation:
    """Everything known about one program.

    Attributes:
        program: what is traced.
        make_inputs: creates fresh fakes of all inputs, lifted ones first; called once per trace.
        lifted: real tensors for the leading inputs, which callers do not pass.
        eager: runs the program on the callers' inputs and returns flat outputs.
        fake_mode: the mode of the fakes.
        options: compilers and options.
        graph: the graph that the program runs, if it is one.
    """

    program: Program
    make_inputs: Callable[[], tuple[InputSpec, ...]]
    lifted: tuple[torch.Tensor, ...]
    eager: Callable[..., Sequence[Any]]
    fake_mode: FakeTensorMode
    options: CompileOptions
    out_spec: Any = None
    graph: torch.fx.GraphModule | None = None
    _compiled: dict[bool, Callable[..., Any]] = field(default_factory=dict)

    def variant(self, grad_enabled: bool) -> Callable[..., Any]:
        """The callable for a grad mode; if called in the other mode, it compiles that one, too."""
        if grad_enabled not in self._compiled:
            self._compiled[grad_enabled] = self._compile(grad_enabled)
        return self._compiled[grad_enabled]

    def trace_spec(self, grad_enabled: bool) -> TraceSpec:
        """What a trace in a grad mode reads."""
        return TraceSpec(self.program, self.make_inputs, self.fake_mode, grad_enabled)

    @deferred()
    def _compile(self, grad_enabled: bool) -> Callable[..., Any]:
        trace_spec = self.trace_spec(grad_enabled)
        entry = self._entry(grad_enabled)
        cached = None if entry is None else look_up(entry, self.eager)
        if entry is not None and cached is not None:
            return self._revive(entry, cached, trace_spec)
        joint = trace_spec.trace()
        self.out_spec = joint.out_spec
        optimise_joint(joint, self.options)
        depends_on_mode = any(s.requires_grad for s in joint.inputs)
        other = self._other_mode(grad_enabled) if depends_on_mode else None
        runtime = self._runtime(joint, other, grad_enabled)
        runtime.overlapping = self._overlapping(grad_enabled, joint.plan.written_inputs)
        call, text = compile_joint(runtime, trace_spec, self.options)
        if entry is not None:
            entry.put(partial(dump, runtime, call, text, entry))
        return call

    def _runtime(
        self, joint: Joint, other: Callable[..., Any] | None, grad_enabled: bool
    ) -> Runtime:
        in_autocast = torch._C._is_any_autocast_enabled()
        return Runtime(joint, self.lifted, self.eager, other, grad_enabled, in_autocast)

    def _entry(self, grad_enabled: bool) -> CacheEntry | None:
        """The cache entry of the first variant; later ones see another state of torch than the
        capture did.
        """
        is_first = self.graph is not None and not self.lifted and not self._compiled
        if self.options.cache is None or is_transformed() or PATTERNS or not is_first:
            return None
        return self.options.cache(self.graph, self.make_inputs(), grad_enabled)

    def _revive(
        self, entry: CacheEntry, cached: CachedProgram, trace_spec: TraceSpec
    ) -> Callable[..., Any]:
        anew = self.late_calls(cached, trace_spec)
        return revive(cached, entry, anew, self.options.wrap_backward)

    def late_calls(
        self, cached: CachedProgram, trace_spec: TraceSpec
    ) -> dict[str, Callable[..., Any]]:
        """What a cached program calls where nothing is compiled yet: ``PROCESS_OBJECTS`` without
        the compiled graphs.
        """
        grad_enabled = trace_spec.grad_enabled
        late = DeferredBackward(cached, partial(deferred_backward, trace_spec, self.options))
        return {
            "other_mode": self._other_mode(grad_enabled),
            "overlapping": self._overlapping(grad_enabled, cached.written),
            "double_backward": late.double,
            "partial_backward": late.partial,
        }

    def _other_mode(self, grad_enabled: bool) -> Callable[..., Any]:
        return lambda *inputs: self._variant_or_eager(not grad_enabled)(*inputs)

    def _overlapping(self, grad_enabled: bool, written: Sequence[int]) -> OverlapDispatcher:
        fallback = Fallback(self.eager, "inputs that are written share memory")
        compile = partial(self._compile_for_layout, grad_enabled)
        return OverlapDispatcher(written, self.lifted, compile, fallback)

    @deferred()
    def _compile_for_layout(
        self, grad_enabled: bool, inputs: Sequence[Any], layout: Layout
    ) -> Callable[..., Any] | None:
        """The callable for inputs of this memory layout and these sizes; None if unsupported."""
        fake_mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))
        specs = [
            replace(s, value=_static(x, fake_mode))
            for s, x in zip(self.make_inputs(), inputs, strict=True)
        ]
        for i, view in layout.views.items():
            specs[i] = replace(specs[i], requires_grad=False, is_leaf=False, view_of=view)
        for i, base in enumerate(layout.bases):
            fake = _static(base, fake_mode)
            specs.append(InputSpec(f"base_{i}", fake, False, base.requires_grad, base.is_leaf))

        def make_inputs() -> tuple[InputSpec, ...]:
            fresh = (
                fresh_fake(s.value, s.requires_grad, fake_mode) if s.is_tensor else s.value
                for s in specs
            )
            return tuple(replace(s, value=value) for s, value in zip(specs, fresh))

        def program(values: Sequence[Any], *how: Any) -> Any:
            return self.program(values[: len(inputs)], *how)

        trace_spec = TraceSpec(program, make_inputs, fake_mode, grad_enabled)
        try:
            joint = trace_spec.trace()
            optimise_joint(joint, self.options)
            runtime = self._runtime(joint, None, grad_enabled)
            return compile_joint(runtime, trace_spec, self.options)[0]
        except (Unsupported, SymbolicError):
            return None

    def _variant_or_eager(self, grad_enabled: bool) -> Callable[..., Any]:
        """``variant``, or a fallback: the caller's guards are fixed, so none can be added."""
        if grad_enabled not in self._compiled:
            try:
                with self.fake_mode.shape_env.freeze():
                    return self.variant(grad_enabled)
            except (Unsupported, SymbolicError) as error:
                refusal = error
            except CompilerError as error:
                if not isinstance(error.__cause__, SymbolicError):
                    raise
                refusal = error.__cause__
            reason = f"grad mode {'on' if grad_enabled else 'off'} cannot be compiled"
            self._compiled[grad_enabled] = Fallback(self.eager, reason, str(refusal))
        return self._compiled[grad_enabled]


def _static(value: Any, fake_mode: FakeTensorMode) -> Any:
    return fresh_fake(value, False, fake_mode) if isinstance(value, torch.Tensor) else value
