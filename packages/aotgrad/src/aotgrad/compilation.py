"""A program, how its inputs are made fake, and what has been compiled from it: one variant per grad mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from symshapes import FakeTensorMode, SymbolicError

from .compile import Options, compile_joint, optimise_joint
from .errors import CompilerError, Unsupported
from .fallback import Fallback
from .joint import Program
from .plan import InputSpec
from .recipe import Recipe
from .runtime import Runtime


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
    """

    program: Program
    make_inputs: Callable[[], tuple[InputSpec, ...]]
    lifted: tuple[torch.Tensor, ...]
    eager: Callable[..., Sequence[Any]]
    fake_mode: FakeTensorMode
    options: Options
    out_spec: Any = None
    _compiled: dict[bool, Callable[..., Any]] = field(default_factory=dict)

    def variant(self, grad_enabled: bool) -> Callable[..., Any]:
        """The callable for a grad mode; called in the other one, it compiles that, too."""
        if grad_enabled not in self._compiled:
            self._compiled[grad_enabled] = self._compile(grad_enabled)
        return self._compiled[grad_enabled]

    def _compile(self, grad_enabled: bool) -> Callable[..., Any]:
        recipe = Recipe(self.program, self.make_inputs, self.fake_mode, grad_enabled)
        joint = recipe.trace()
        self.out_spec = joint.out_spec
        optimise_joint(joint, self.options)
        depends_on_mode = any(s.requires_grad for s in joint.inputs)

        def other_mode(*inputs: Any) -> Any:
            return self._variant_or_eager(not grad_enabled)(*inputs)

        other = other_mode if depends_on_mode else None
        in_autocast = torch._C._is_any_autocast_enabled()
        run = Runtime(joint, self.lifted, self.eager, other, grad_enabled, in_autocast)
        return compile_joint(joint, run, recipe, self.options)

    def _variant_or_eager(self, grad_enabled: bool) -> Callable[..., Any]:
        """``variant`` for a caller that has taken its guards already and cannot run the program in another way."""
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
