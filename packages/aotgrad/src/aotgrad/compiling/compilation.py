"""A program, how its inputs are made fake, and what has been compiled from it: one variant per grad
mode.
"""

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
from aotgrad.graphs.recipe import Recipe
from aotgrad.graphs.trace import fresh_fake
from aotgrad.running.fallback import Fallback, is_transformed
from aotgrad.running.runtime import Runtime
from aotgrad.tracing.aliased_inputs import Layout, Overlapping
from aotgrad.tracing.joint import Program

from .compile import Options, compile_joint, late_backward, optimise_joint
from .compiled_cache import Entry, Kept, LateBackward, dump, load, revive, written_inputs


@dataclass(slots=True)
class Compilation:
    """Everything known about one program.

    Attributes:
        program: what is traced.
        make_inputs: fresh fakes of all inputs, the lifted ones first; called once per trace.
        lifted: real tensors of the leading inputs, which callers do not pass.
        eager: runs the program on the inputs that callers pass and returns flat outputs.
        fake_mode: the mode of the fakes.
        options: compilers and choices.
        graph: what the program runs, where that is a graph.
    """

    program: Program
    make_inputs: Callable[[], tuple[InputSpec, ...]]
    lifted: tuple[torch.Tensor, ...]
    eager: Callable[..., Sequence[Any]]
    fake_mode: FakeTensorMode
    options: Options
    out_spec: Any = None
    graph: torch.fx.GraphModule | None = None
    _compiled: dict[bool, Callable[..., Any]] = field(default_factory=dict)

    def variant(self, grad_enabled: bool) -> Callable[..., Any]:
        """The callable for a grad mode; called in the other one, it compiles that, too."""
        if grad_enabled not in self._compiled:
            self._compiled[grad_enabled] = self._compile(grad_enabled)
        return self._compiled[grad_enabled]

    @deferred()
    def _compile(self, grad_enabled: bool) -> Callable[..., Any]:
        recipe = Recipe(self.program, self.make_inputs, self.fake_mode, grad_enabled)
        entry = self._entry(grad_enabled)
        kept = None if entry is None else load(entry.data, self.eager)
        if entry is not None and kept is not None:
            return self._revive(entry, kept, recipe)
        joint = recipe.trace()
        self.out_spec = joint.out_spec
        optimise_joint(joint, self.options)
        depends_on_mode = any(s.requires_grad for s in joint.inputs)
        other = self._other_mode(grad_enabled) if depends_on_mode else None
        in_autocast = torch._C._is_any_autocast_enabled()
        run = Runtime(joint, self.lifted, self.eager, other, grad_enabled, in_autocast)
        run.overlapping = self._overlapping(grad_enabled, written_inputs(run))
        call, text = compile_joint(joint, run, recipe, self.options)
        data = None if entry is None else dump(run, call, text)
        if entry is not None and data is not None:
            entry.put(data)
        return call

    def _entry(self, grad_enabled: bool) -> Entry | None:
        """Of the variant that is compiled at once: for a later one, the state of torch is not that
        of the capture.
        """
        is_first = self.graph is not None and not self.lifted and not self._compiled
        is_watched = self.options.on_artifact is not None or is_transformed()
        if self.options.memory is None or is_watched or PATTERNS or not is_first:
            return None
        return self.options.memory(self.graph, self.make_inputs(), grad_enabled)

    def _revive(self, entry: Entry, kept: Kept, recipe: Recipe) -> Callable[..., Any]:
        grad_enabled = recipe.grad_enabled
        late = LateBackward(kept, partial(late_backward, recipe, self.options))
        anew = {
            "other_mode": self._other_mode(grad_enabled),
            "overlapping": self._overlapping(grad_enabled, kept.written),
            "double_backward": late.double,
            "partial_backward": late.partial,
        }
        return revive(kept, entry, anew, self.options.around_backward)

    def _other_mode(self, grad_enabled: bool) -> Callable[..., Any]:
        return lambda *inputs: self._variant_or_eager(not grad_enabled)(*inputs)

    def _overlapping(self, grad_enabled: bool, written: Sequence[int]) -> Overlapping:
        overlapping = Fallback(self.eager, "inputs that are written share memory")
        return Overlapping(
            written, self.lifted, partial(self._compile_placed, grad_enabled), overlapping
        )

    @deferred()
    def _compile_placed(
        self, grad_enabled: bool, inputs: Sequence[Any], layout: Layout
    ) -> Callable[..., Any] | None:
        """The program for inputs that lie in memory in this way, or None. Sizes are those of these
        inputs.
        """
        fake_mode = FakeTensorMode(ShapeEnv(allow_unbacked=True))
        specs = [
            replace(s, value=_static(x, fake_mode))
            for s, x in zip(self.make_inputs(), inputs, strict=True)
        ]
        for i, place in layout.places.items():
            specs[i] = replace(specs[i], requires_grad=False, is_leaf=False, place=place)
        for i, base in enumerate(layout.bases):
            specs.append(
                InputSpec(
                    f"base_{i}", _static(base, fake_mode), False, base.requires_grad, base.is_leaf
                )
            )

        def make_inputs() -> tuple[InputSpec, ...]:
            fresh = (
                fresh_fake(s.value, s.requires_grad, fake_mode) if s.is_tensor else s.value
                for s in specs
            )
            return tuple(replace(s, value=value) for s, value in zip(specs, fresh))

        def program(values: Sequence[Any], *how: Any) -> Any:
            return self.program(values[: len(inputs)], *how)

        recipe = Recipe(program, make_inputs, fake_mode, grad_enabled)
        try:
            joint = recipe.trace()
            optimise_joint(joint, self.options)
            run = Runtime(
                joint,
                self.lifted,
                self.eager,
                None,
                grad_enabled,
                torch._C._is_any_autocast_enabled(),
            )
            return compile_joint(joint, run, recipe, self.options)[0]
        except (Unsupported, SymbolicError):
            return None

    def _variant_or_eager(self, grad_enabled: bool) -> Callable[..., Any]:
        """``variant`` for a caller that has taken its guards already and cannot run the program in
        another way.
        """
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
