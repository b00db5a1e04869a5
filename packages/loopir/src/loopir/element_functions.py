"""Functions of one element, given as text, as the bodies of kernels: score and mask functions of
attention, which a template computes on its tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import primops
import sympy
import torch
from symshapes.text.functions import parse_functions

from .errors import LoweringError
from .ir.kernel import Body, Instruction, Kernel, map_steps
from .ir.program import Launch, Program
from .lowering import lower
from .options import Options
from .schedule import schedule


@dataclass(frozen=True, slots=True)
class ElementFunction:
    """A function of numbers and of tensors in which it looks up elements.

    Attributes:
        body: its instructions. A load of an input reads ``[0]`` of a number, or an element of a
            tensor by indirect indices. The store to ``result`` has the result.
        result: the buffer of that store.
        inputs: the names of the function's parameters, in order.
        sizes: the tensor and dim of each size symbol in the body.
        dtypes: of the inputs and the result.
    """

    body: Body
    result: str
    inputs: tuple[str, ...]
    sizes: Mapping[sympy.Symbol, tuple[str, int]]
    dtypes: Mapping[str, torch.dtype]


RESULT = "result"


def lower_functions(text: str) -> dict[str, ElementFunction]:
    """The functions of a text (``symshapes.text.functions``) by name. Raises LoweringError for one
    that is no single loop body, and ParseError.
    """
    return {name: _lowered(name, gm) for name, gm in parse_functions(text).items()}


def _lowered(name: str, gm: torch.fx.GraphModule) -> ElementFunction:
    inputs = {node.name: node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")}
    places: dict[str, tuple[str, int]] = {}
    for parameter, value in inputs.items():
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(str(size.node.expr), (parameter, dim))
    options = Options(threads=1, split_reductions=False)
    program = schedule(lower(primops.decompose(gm), options), options)
    kernel, launch = _single_kernel(name, program)
    parameters = [entry.removeprefix("in_") for entry in map(str, program.inputs)]
    by_buffer = {buffer: str(entry) for buffer, entry in zip(map(str, program.inputs), parameters)}
    names = {
        buffer.name: by_buffer.get(outer, RESULT)
        for buffer, outer in zip(kernel.buffers, launch.buffers)
    }
    (body,) = map_steps(lambda step: _renamed(step, names), kernel.bodies)
    sizes = {size: places[size.name] for size in kernel.sizes}
    dtypes = {parameter: value.dtype for parameter, value in inputs.items()}
    stored = next(step for step in body.instructions if step.op == "store")
    assert stored.args[0] == RESULT
    dtypes[RESULT] = kernel.dtypes[next(k for k, v in names.items() if v == RESULT)]
    return ElementFunction(body, RESULT, tuple(parameters), sizes, dtypes)


def _single_kernel(name: str, program: Program) -> tuple[Kernel, Launch]:
    launches = [step for step in program.steps if isinstance(step, Launch)]
    if len(program.kernels) == len(launches) == 1:
        kernel = program.kernels[0]
        if isinstance(kernel, Kernel) and len(kernel.bodies) == 1 and not kernel.reduction:
            return kernel, launches[0]
    raise LoweringError(f"the function {name!r} is no single loop body of one element")


def _renamed(step: Instruction, names: Mapping[str, str]) -> Instruction:
    if not step.is_access:
        return step
    return replace(step, args=(names[str(step.args[0])], *step.args[1:]))
