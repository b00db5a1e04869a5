"""Templates: an operator (matrix product, convolution) with pointwise kernels before and after it.

The meaning is :func:`evaluate_template`: prologues, the operator, the epilogue, one after the
other. A code generator that takes a template (``backend.OffersTemplates``) does all in one launch:
the bodies of a prologue run where it loads the operand, those of the epilogue where it would store
the result. It may keep more precision there than the buffers' dtypes have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch._ops import OpOverload

from .evaluate import evaluate_expr, evaluate_kernel
from .expr import format_expr
from .kernel import Kernel, KernelBuffer
from .node import Origin, Symbolic, View
from .text import format_buffer, format_kernel


@dataclass(frozen=True, slots=True)
class Stage:
    """A kernel of which ``buffer`` is no memory: an operand that it computes, or the operator's
    result.

    ``kernel.ranges`` are the dims of that tensor as the operator has them, in order, sizes 1 too:
    ``x0``, ``x1``, ... Where the result is reduced along its last dim, that is
    ``kernel.reduction``. It has loads (one store) of ``buffer``, unmasked, at the position of that
    point. ``arguments`` are the places among the template's buffers of the kernel's other buffers,
    in order.
    """

    kernel: Kernel
    buffer: str
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """``op(*args, **kwargs)`` between stages. Tensor arguments are ``View``s of a buffer named in
    ``buffers`` or of an operand named in ``prologues``; sizes are ``Symbolic``. ``result`` are
    sizes and strides of what ``op`` returns.

    A built template is called like a kernel: the tensors of ``buffers``, an int per ``sizes``.
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


def evaluate_template(
    template: Template, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()
) -> None:
    """Runs ``template`` on ``tensors`` (in ``template.buffers`` order) and ``sizes`` (likewise) in
    place, stage by stage.
    """
    known: dict[str, torch.Tensor | int] = {
        s.name: v for s, v in zip(template.sizes, sizes, strict=True)
    }  # type: ignore[attr-defined]
    memory = {
        declared.name: tensor for declared, tensor in zip(template.buffers, tensors, strict=True)
    }
    for name, stage in template.prologues:
        declared = next(buffer for buffer in stage.kernel.buffers if buffer.name == stage.buffer)
        numel = int(evaluate_expr(declared.numel, known))
        memory[name] = torch.empty(numel, dtype=declared.dtype, device=tensors[0].device)
        _run_stage(stage, memory[name], tensors, known)
    args = [_argument(arg, memory, known) for arg in template.args]
    result = template.op(
        *args, **{key: _argument(arg, memory, known) for key, arg in template.kwargs}
    )
    product = torch.empty_strided(
        *(_sizes(s, known) for s in (template.result.shape, template.result.stride)),
        dtype=result.dtype,
    )
    _run_stage(template.epilogue, product.to(result.device).copy_(result), tensors, known)


def _run_stage(
    stage: Stage, tensor: torch.Tensor, tensors: Sequence[torch.Tensor], known: dict
) -> None:
    others = iter(stage.arguments)
    given = [
        tensor if buffer.name == stage.buffer else tensors[next(others)]
        for buffer in stage.kernel.buffers
    ]
    evaluate_kernel(stage.kernel, given, [int(known[size.name]) for size in stage.kernel.sizes])  # type: ignore[attr-defined]


def _sizes(exprs: Sequence[sympy.Expr], known: dict) -> list[int]:
    return [int(evaluate_expr(expr, known)) for expr in exprs]


def _argument(arg: object, memory: dict[str, torch.Tensor], known: dict) -> object:
    if isinstance(arg, View):
        base = memory[arg.buffer]
        (offset,) = _sizes((arg.offset,), known)
        return base.as_strided(
            _sizes(arg.shape, known), _sizes(arg.stride, known), base.storage_offset() + offset
        )
    if isinstance(arg, Symbolic):
        return int(evaluate_expr(arg.expr, known))
    if isinstance(arg, list | tuple):
        return [_argument(item, memory, known) for item in arg]
    return arg


def format_template(template: Template) -> str:
    """The template as text: its stages as kernels, and the call."""
    parameters = [format_buffer(buffer) for buffer in template.buffers] + [
        f"{size.name}: Size()" for size in template.sizes
    ]  # type: ignore[attr-defined]
    lines = [f"# {name}: {' '.join(line.split())}".rstrip(": ") for name, line in template.origins]
    lines += [
        f"@template(device={template.device!r})",
        f"def {template.name}({', '.join(parameters)}):",
    ]
    lines += [
        f"    {name} = prologue_{name}({_places(template, stage)})"
        for name, stage in template.prologues
    ]
    call = ", ".join(
        [*map(_shown, template.args), *(f"{key}={_shown(arg)}" for key, arg in template.kwargs)]
    )
    lines += [
        f"    product = {template.op}({call})",
        f"    epilogue({_places(template, template.epilogue)})",
        "",
    ]
    stages = [
        *((f"prologue_{name}", stage) for name, stage in template.prologues),
        ("epilogue", template.epilogue),
    ]
    return "\n".join(lines) + "".join(
        f"\n# {name}, {stage.buffer} is no memory\n{format_kernel(stage.kernel)}"
        for name, stage in stages
    )


def _places(template: Template, stage: Stage) -> str:
    others = iter(stage.arguments)
    named = (
        stage.buffer if b.name == stage.buffer else template.buffers[next(others)].name
        for b in stage.kernel.buffers
    )
    return ", ".join(named)


def _shown(arg: object) -> str:
    if isinstance(arg, View):
        shape, stride = ([format_expr(e) for e in exprs] for exprs in (arg.shape, arg.stride))
        return (
            f"view({arg.buffer}, [{', '.join(shape)}], [{', '.join(stride)}], "
            f"{format_expr(arg.offset)})"
        )
    if isinstance(arg, Symbolic):
        return format_expr(arg.expr)
    return f"[{', '.join(map(_shown, arg))}]" if isinstance(arg, list | tuple) else repr(arg)


def format_any(kernel: Kernel | Template) -> str:
    """The text of what a program launches."""
    return format_template(kernel) if isinstance(kernel, Template) else format_kernel(kernel)


def kernels_of(kernel: Kernel | Template) -> tuple[Kernel, ...]:
    """A kernel itself, or those of a template's stages."""
    if isinstance(kernel, Template):
        return (*(stage.kernel for _, stage in kernel.prologues), kernel.epilogue.kernel)
    return (kernel,)
