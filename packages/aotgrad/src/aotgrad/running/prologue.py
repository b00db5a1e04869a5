"""Writes the checks at the start of a call: when the compiled program must not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from symshapes import is_wrapper
from torch.autograd import forward_ad

from aotgrad.effect_plan import ExternalTensor, InputSpec, output_bases
from aotgrad.tracing.autograd_history import depends_on_any
from aotgrad.tracing.memory_overlap import all_inner_tensors, share_elements, share_storage

from .fallback import OFFSET_INPUT, OUTER_HISTORY, TRANSFORMED, Fallback
from .python_text import PythonWriter, tuple_text

if TYPE_CHECKING:
    from aotgrad.graphs.partial_backward import PartialBackward
    from aotgrad.graphs.split import Split
    from aotgrad.tracing.joint import Joint

    from .double_backward import DoubleBackward


@dataclass(slots=True)
class Runtime:
    """What a call needs in addition to the compiled graphs.

    Attributes:
        joint: the traced program.
        lifted: real tensors for the leading inputs, which the caller does not pass.
        eager: runs the original program on the caller's inputs.
        other_mode: called if the grad mode differs from the traced one; None if it can't matter.
        grad_enabled: the traced grad mode.
        in_autocast: whether the trace ran under autocast.
        double: makes backward differentiable.
        partial: computes gradients from some tangents only.
        overlapping: called if written inputs share memory with others; None if they can't.
        split: the forward and backward graphs, if there is a backward.
        has_private_values: whether saved values travel as one object (B7).
    """

    joint: Joint
    lifted: tuple[torch.Tensor, ...]
    eager: Callable[..., Sequence[Any]]
    other_mode: Callable[..., Sequence[Any]] | None
    grad_enabled: bool
    in_autocast: bool
    double: DoubleBackward | None = None
    partial: PartialBackward | None = None
    overlapping: Callable[..., Any] | None = None
    split: Split | None = None
    has_private_values: bool = False

    @property
    def parameters(self) -> tuple[InputSpec, ...]:
        """The inputs that the caller passes."""
        return self.joint.inputs[len(self.lifted) :]

    @property
    def arguments(self) -> str:
        """Text of those inputs, as parameters and as arguments."""
        return ", ".join(s.name for s in self.parameters)

    @property
    def autocast(self) -> str:
        """Argument of ``call_compiled`` for forward graphs."""
        return "on" if self.in_autocast else "off"


def write_prologue(
    out: PythonWriter, runtime: Runtime, saved: Sequence[torch.fx.Node] = ()
) -> None:
    """Writes the checks at the start of ``call``."""
    transforms = out.name("transforms", torch._C._are_functorch_transforms_active)  # type: ignore[attr-defined]
    is_transformed = f"{transforms}() or {out.name('forward_ad', forward_ad)}._current_level >= 0"
    _write_exit(out, runtime, is_transformed, "transformed", Fallback(runtime.eager, TRANSFORMED))
    if runtime.other_mode is not None:
        negate = "not " if runtime.grad_enabled else ""
        condition = f"{negate}{out.name('grad_enabled', torch.is_grad_enabled)}()"
        _write_exit(out, runtime, condition, "other_mode", runtime.other_mode)
    _write_history_checks(out, runtime)
    _write_offset_checks(out, runtime)
    _write_overlap_check(out, runtime, saved)


def within_new_leaves(out: PythonWriter, runtime: Runtime) -> AbstractContextManager[None]:
    """The block in which inputs require grad that the program begins to differentiate by."""
    names = [s.name for s in runtime.joint.inputs if s.becomes_leaf]
    return out.block(
        f"with {out.name('new_leaves', new_leaves)}({tuple_text(names)}):" * bool(names)
    )


@contextmanager
def new_leaves(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Calls ``requires_grad_()``, and takes it back if the block raises: the program then runs in
    eager mode, which may raise before its own call.
    """
    changed = [t for t in tensors if not t.requires_grad]
    for t in changed:
        t.requires_grad_()
    try:
        yield
    except BaseException:
        for t in changed:
            if t.is_leaf:
                t.requires_grad_(False)
        raise


def _write_exit(
    out: PythonWriter, runtime: Runtime, condition: str, name: str, function: Callable[..., Any]
) -> None:
    """Writes: if ``condition``, return what ``function`` returns."""
    with out.block(f"if {condition}:"):
        out(f"return {out.name(name, function)}({runtime.arguments})")


def _write_history_checks(out: PythonWriter, runtime: Runtime) -> None:
    """Differentiation inside the program must not reach the history of an input."""
    names = [s.name for s in runtime.joint.inputs]
    for outer in runtime.joint.outer_histories:
        tensors = (tuple_text(names[i] for i in sorted(s)) for s in (outer.through, outer.targets))
        condition = f"{out.name('depends_on_any', depends_on_any)}({', '.join(tensors)})"
        fallback = Fallback(runtime.eager, OUTER_HISTORY, outer.line)
        _write_exit(out, runtime, condition, "outer_history", fallback)


def _write_offset_checks(out: PythonWriter, runtime: Runtime) -> None:
    """An input that is written, and read at a storage offset, must begin at offset 0: its new value
    does.
    """
    for i in sorted(runtime.joint.reads_offset.intersection(runtime.joint.plan.written_inputs)):
        condition = f"{runtime.joint.inputs[i].name}.storage_offset()"
        _write_exit(out, runtime, condition, "offset_input", Fallback(runtime.eager, OFFSET_INPUT))


def _write_overlap_check(
    out: PythonWriter, runtime: Runtime, saved: Sequence[torch.fx.Node]
) -> None:
    """A written input must share no elements with another one.

    Disjoint tensors of one storage share a version counter. The others are saved as ``.data``, so
    that autograd does not take the write for a write to them.
    """
    inputs, plan = runtime.joint.inputs, runtime.joint.plan
    written = [inputs[i].name for i in plan.written_inputs]
    others = [s for s in inputs if s.is_tensor and s.name not in written and s.view_of is None]
    if runtime.overlapping is None or not written or len(written) + len(others) < 2:
        return
    external = (b for b in output_bases(plan.outputs) if isinstance(b, ExternalTensor))
    returned = {inputs[t.index].name for t in external if t.index >= 0}
    names = {n.name for n in saved}
    strict = [s.name for s in others if s.name in names and (s.requires_grad or s.name in returned)]
    disjoint = [s.name for s in others if s.name in names and s.name not in strict]
    has_wrappers = any(is_wrapper(s.value) for s in inputs)
    inner = out.name("all_inner_tensors", all_inner_tensors) if has_wrappers else ""
    texts = inner + tuple_text(written), inner + tuple_text(s.name for s in others)
    with out.block(f"if {out.name('share_storage', share_storage)}({', '.join(texts)}):"):
        tests = [f"{out.name('share_elements', share_elements)}({', '.join(texts)})"]
        if strict:
            tests.append(f"share_storage({texts[0]}, {inner + tuple_text(strict)})")
        _write_exit(out, runtime, " or ".join(tests), "overlapping", runtime.overlapping)
        for name in disjoint:
            out(f"{name} = {name}.data")
