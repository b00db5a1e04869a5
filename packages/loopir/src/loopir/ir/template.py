"""Templates: an operator (matrix product, convolution) with pointwise kernels before and after it.

The meaning is :func:`evaluate_template`: prologues, the operator and the epilogue run one after the
other. A code generator that accepts a template (``backend.OffersTemplates``) does everything in one
launch: the body of a prologue runs where the operator loads the operand, and the bodies of the
epilogue where it would store the result. It may keep more precision there than the dtypes of the
buffers have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TypeVar

import sympy
import torch
from symshapes.text.expressions import format_expression
from symshapes.text.names import format_target
from symshapes.text.values import format_value
from torch._ops import OpOverload

from .evaluate import evaluate_expr, evaluate_kernel
from .expr import format_expr
from .kernel import Kernel, KernelBuffer
from .nest import map_leaves
from .node import Item, Origin, Symbolic, View, views_in
from .text import format_buffer, format_kernel, format_size, format_sizes

T = TypeVar("T")
_MOST_NAMES = 3
Sizes = dict[str, torch.Tensor | int]


@dataclass(frozen=True, slots=True)
class Stage:
    """A kernel with a ``buffer`` that is never in memory: the operand that the kernel computes, or
    the operator's result.

    ``kernel.ranges`` are the dims of that tensor in the operator's order, including dims of size 1:
    ``x0``, ``x1``, ... If the result is reduced along its last dim, that dim is
    ``kernel.reduction``. A prologue stores ``buffer`` once, an epilogue loads it, unmasked, at the
    position of the current point. ``arguments`` are the indices of the kernel's other buffers among
    the template's buffers, in order.
    """

    kernel: Kernel
    buffer: str
    arguments: tuple[int, ...]

    @property
    def tensor(self) -> KernelBuffer:
        """The declaration of ``buffer``."""
        return next(buffer for buffer in self.kernel.buffers if buffer.name == self.buffer)

    def operands(self, own: T, others: Sequence[T]) -> list[T]:
        """One operand per buffer of the kernel: ``own`` for ``buffer``, and the template's
        ``others`` for the rest.
        """
        rest = iter(self.arguments)
        return [
            own if item.name == self.buffer else others[next(rest)] for item in self.kernel.buffers
        ]


@dataclass(frozen=True, slots=True)
class Template:
    """``op(*args, **kwargs)`` between stages.

    Tensor arguments are ``View``s of a buffer named in ``buffers`` or of an operand named in
    ``prologues``; sizes are ``Symbolic``. ``result`` has the sizes and strides of the result of
    ``op``. A built template is called like a kernel: with the tensors of ``buffers`` and an int per
    ``sizes``.
    """

    name: str
    device: str
    op: OpOverload
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    result: View
    buffers: tuple[KernelBuffer, ...]
    sizes: tuple[sympy.Symbol, ...]
    epilogue: Stage
    prologues: tuple[tuple[str, Stage], ...] = ()
    hints: tuple[tuple[sympy.Symbol, int], ...] = ()
    origins: tuple[Origin, ...] = field(default=(), compare=False)

    @property
    def views(self) -> list[View]:
        """The views among the arguments, in order."""
        return views_in((self.args, dict(self.kwargs)))

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The buffers' dtypes by name."""
        return {buffer.name: buffer.dtype for buffer in self.buffers}


def evaluate_template(
    template: Template, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()
) -> None:
    """Runs ``template`` on ``tensors`` (in ``template.buffers`` order) and ``sizes`` (in
    ``template.sizes`` order) in place, stage by stage.
    """
    known: Sizes = {s.name: v for s, v in zip(template.sizes, sizes, strict=True)}
    memory = {
        declared.name: tensor for declared, tensor in zip(template.buffers, tensors, strict=True)
    }
    for name, stage in template.prologues:
        (numel,) = _sizes((stage.tensor.numel,), known)
        memory[name] = torch.empty(numel, dtype=stage.tensor.dtype, device=tensors[0].device)
        _run_stage(stage, memory[name], tensors, known)

    def value(leaf: object) -> object:
        if isinstance(leaf, View):
            base, (offset,) = memory[leaf.buffer], _sizes((leaf.offset,), known)
            shape, stride = _sizes(leaf.shape, known), _sizes(leaf.stride, known)
            return base.as_strided(shape, stride, base.storage_offset() + offset)
        return int(evaluate_expr(leaf.expr, known)) if isinstance(leaf, Symbolic) else leaf

    args, kwargs = map_leaves(value, (template.args, dict(template.kwargs)))
    result = template.op(*args, **kwargs)
    product = torch.empty_strided(
        *(_sizes(s, known) for s in (template.result.shape, template.result.stride)),
        dtype=result.dtype,
    )
    _run_stage(template.epilogue, product.to(result.device).copy_(result), tensors, known)


def _run_stage(
    stage: Stage, tensor: torch.Tensor, tensors: Sequence[torch.Tensor], known: Sizes
) -> None:
    evaluate_kernel(
        stage.kernel, stage.operands(tensor, tensors), _sizes(stage.kernel.sizes, known)
    )


def _sizes(exprs: Sequence[sympy.Expr], known: Sizes) -> list[int]:
    return [int(evaluate_expr(expr, known)) for expr in exprs]


def format_template(template: Template) -> str:
    """The text of a template: its prologues, the operator and its epilogue, in that order."""
    parameters = [format_buffer(buffer) for buffer in template.buffers]
    parameters += [format_size(template.hints, size) for size in template.sizes]
    lines = [f"# {name}: {' '.join(line.split())}".rstrip(": ") for name, line in template.origins]
    lines += [
        f"@template(device={template.device!r})",
        f"def {template.name}({', '.join(parameters)}):",
    ]
    for name, stage in template.prologues:
        lines += _format_stage("prologue", stage, [f"operand={name!r}"])
    call = [format_target(template.op), *map(_format_argument, template.args)]
    call += [f"{key}={_format_argument(arg)}" for key, arg in template.kwargs]
    lines.append(f"    product = call({', '.join(call)})")
    lines.append(f"    result({_format_argument(template.result)})")
    return "\n".join([*lines, *_format_stage("epilogue", template.epilogue, [])]) + "\n"


def _format_stage(kind: str, stage: Stage, more: list[str]) -> list[str]:
    notes = [*more, f"buffer={stage.buffer!r}", f"arguments={stage.arguments!r}"]
    kernel = format_kernel(stage.kernel).splitlines()
    return [f"    @{kind}({', '.join(notes)})", *(f"    {line}" for line in kernel)]


def _format_argument(arg: object) -> str:
    return format_value(arg, format_leaf)


def format_leaf(value: object) -> str | None:
    """Views and sizes among the arguments of an operator; None for other values."""
    if isinstance(value, View):
        kind = "item" if isinstance(value, Item) else "view"
        parts = (*map(format_sizes, (value.shape, value.stride)), format_expr(value.offset))
        return f"{kind}({value.buffer}, {', '.join(parts)})"
    return f"symbolic({format_expression(value.expr)})" if isinstance(value, Symbolic) else None


def format_any(kernel: Kernel | Template) -> str:
    """The text of a kernel or template."""
    return format_template(kernel) if isinstance(kernel, Template) else format_kernel(kernel)


def kernel_label(kernel: Kernel | Template) -> str:
    """A name that says what a kernel computes, the same for equal kernels of all programs: nodes
    from which it comes, and a digest of its text.
    """
    text = format_any(replace(kernel, name="kernel", origins=(), hints=()))
    names = [*dict.fromkeys(name for name, _ in kernel.origins)]
    title = "+".join(names[:_MOST_NAMES]) + ("+..." if len(names) > _MOST_NAMES else "")
    return f"{title or 'kernel'} {sha256(text.encode()).hexdigest()[:12]}"


def kernels_of(kernel: Kernel | Template) -> tuple[Kernel, ...]:
    """The kernels of a template's stages, or the kernel itself."""
    if isinstance(kernel, Template):
        return (*(stage.kernel for _, stage in kernel.prologues), kernel.epilogue.kernel)
    return (kernel,)
