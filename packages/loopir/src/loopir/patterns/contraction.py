"""Offers convolutions and linear layers to code generators, with the pointwise operations that
follow them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._ops import OpOverload

from loopir.backend import (
    CodeGenerator,
    Contraction,
    Offer,
    OffersContractions,
    Packed,
    PointwiseStep,
    TensorInput,
)
from loopir.errors import LoweringError

from .fold import norm_in_evaluation
from .match import (
    VIEWS,
    add_call,
    add_constant,
    arguments_of,
    constant_of,
    in_format,
    meta_of,
    name_of,
    only_user,
    same_shape,
    tensor_of,
    transposed,
    with_format,
)

aten = torch.ops.aten
COMMUTATIVE = {"add", "mul", "maximum", "minimum"}
CONTRACTIONS = {"mm", "addmm", "convolution"}
MAX_STEPS = 8


@dataclass(slots=True)
class Match:
    """A contraction in a graph: its operands as nodes (None: no bias), and in ``results`` the nodes
    with its result before any step and after each step; ``inner`` are the nodes before those.
    """

    kind: str
    operands: list[fx.Node | None]
    parameters: tuple[object, ...]
    results: list[fx.Node]
    steps: list[PointwiseStep] = field(default_factory=list)
    step_operands: list[list[fx.Node]] = field(default_factory=list)
    inner: list[fx.Node] = field(default_factory=list)


def offer_contractions(
    gm: fx.GraphModule, codegens: Mapping[str, CodeGenerator], inference: bool = False
) -> int:
    """Replaces the contractions for which the code generator of their device has an operator;
    returns how many.
    """
    offering = {d: each for d, each in codegens.items() if isinstance(each, OffersContractions)}
    if not offering:
        return 0
    count = 0
    for node in [x for x in gm.graph.nodes if name_of(x) in CONTRACTIONS]:
        codegen = offering.get(tensor_of(node).device.type)
        if codegen is None:
            continue
        for match in _matches(node):
            _follow_steps(match)
            offer = codegen.offer(_described(gm, match, inference))
            if offer is not None:
                _replace(gm, match, offer)
                count += 1
                break
    return count


def _matches(node: fx.Node) -> list[Match]:
    """The contractions that end in a node, the largest first."""
    if name_of(node) in ("mm", "addmm"):
        matches = [_match_linear(node)]
    else:
        convolution = _match_convolution(node)
        matches = [convolution and _match_norm(convolution), convolution]
    return [match for match in matches if match is not None]


def _match_norm(match: Match) -> Match | None:
    norm = only_user(match.results[0])
    given = norm_in_evaluation(norm, match.results[0]) if norm is not None else None
    if norm is None or given is None:
        return None
    operands = [
        *match.operands,
        *(given[name] for name in ("running_mean", "running_var", "weight", "bias")),
    ]
    (result,) = norm.users
    parameters = (*match.parameters, float(given["eps"]))
    return Match(
        "normed_convolution", operands, parameters, [result], inner=[match.results[0], norm]
    )


def _match_convolution(node: fx.Node) -> Match | None:
    if name_of(node) != "convolution":
        return None
    x, weight, bias, *parameters = arguments_of(node)
    return Match("convolution", [x, weight, bias], tuple(parameters), [node])


def _match_linear(node: fx.Node) -> Match | None:
    """Matches ``mm`` and ``addmm`` with a transposed weight; the operand is the tensor before it
    was flattened, where that is found.
    """
    arguments = arguments_of(node)
    bias = None
    if name_of(node) == "addmm":
        bias, x, matrix, beta, alpha = arguments
        is_plain = beta == alpha == 1
        if not is_plain or not same_shape(tensor_of(bias).shape, tensor_of(matrix).shape[1:]):
            return None
    else:
        x, matrix = arguments
    weight = _untransposed(matrix)
    if weight is None:
        weight = add_call(node, aten.t.default, (matrix,), transposed(tensor_of(matrix)))
    result = node
    view = only_user(node)
    if name_of(x) in VIEWS and view is not None and name_of(view) in VIEWS:
        rows, columns = tensor_of(x.args[0]).shape[:-1], tensor_of(node).shape[-1]
        if rows and same_shape((*rows, columns), tensor_of(view).shape):
            x, result = x.args[0], view
    return Match("linear", [x, weight, bias], (), [result])


def _untransposed(matrix: fx.Node) -> fx.Node | None:
    name, arguments = name_of(matrix), matrix.args
    is_transpose = (
        name == "t"
        or (name == "permute" and list(arguments[1]) == [1, 0])  # type: ignore[arg-type]
        or (name == "transpose" and sorted(d % 2 for d in arguments[1:3]) == [0, 1])  # type: ignore[operator]
    )
    return arguments[0] if is_transpose else None  # type: ignore[return-value]


def _follow_steps(match: Match) -> None:
    while len(match.steps) < MAX_STEPS:
        x = match.results[-1]
        user = only_user(x)
        step = _step(user, x) if user is not None else None
        if user is None or step is None:
            return
        described, operands = step
        match.steps.append(described)
        match.step_operands.append(operands)
        match.results.append(user)


def _step(user: fx.Node, x: fx.Node) -> tuple[PointwiseStep, list[fx.Node]] | None:
    if not isinstance(user.target, OpOverload) or torch.Tag.pointwise not in user.target.tags:
        return None
    arguments = arguments_of(user)
    before, after = meta_of(x), meta_of(user)
    if (
        before is None
        or after is None
        or before.dtype != after.dtype
        or not same_shape(before.shape, after.shape)
    ):
        return None
    name = name_of(user)
    if arguments[0] is not x:
        if (
            name not in COMMUTATIVE
            or len(arguments) < 2
            or arguments[1] is not x
            or (name == "add" and arguments[2] != 1)
        ):
            return None
        arguments[0], arguments[1] = arguments[1], arguments[0]
    nodes = [a for a in arguments[1:] if isinstance(a, fx.Node)]
    others = [meta_of(n) for n in nodes]
    if len(nodes) > 1 or not all(
        o is not None and same_shape(o.shape, after.shape) and o.dtype == after.dtype
        for o in others
    ):
        return None
    parameters = tuple(a for a in arguments[1:] if not isinstance(a, fx.Node))
    return PointwiseStep(name, parameters, others[0] if others else None), nodes


def _described(gm: fx.GraphModule, match: Match, inference: bool) -> Contraction:
    return Contraction(
        kind=match.kind,
        operands=tuple(meta_of(node) for node in match.operands),
        parameters=match.parameters,
        constant=tuple(constant_of(gm, node) is not None for node in match.operands),
        static=tuple(node is not None and bool(node.meta.get("static")) for node in match.operands),
        steps=tuple(match.steps),
        inference=inference,
        given=tuple(node is not None and node.op == "placeholder" for node in match.operands),
    )


def _replace(gm: fx.GraphModule, match: Match, offer: Offer) -> None:
    if not 0 <= offer.taken <= len(match.steps):
        raise LoweringError(
            f"{offer.op} was offered for {offer.taken} steps; there are {len(match.steps)}"
        )
    last = match.results[offer.taken]
    tensors = [
        *match.operands,
        *(node for nodes in match.step_operands[: offer.taken] for node in nodes),
    ]

    def argument(value: object) -> object:
        if isinstance(value, TensorInput):
            node = tensors[value.position]
            return None if node is None else in_format(node, value.memory_format, last)
        if isinstance(value, Packed):
            constants = [constant_of(gm, tensors[i]) for i in value.positions]
            if any(
                t is None and tensors[i] is not None
                for t, i in zip(constants, value.positions, strict=True)
            ):
                raise LoweringError(
                    f"{offer.op} packs an operand that is no constant (positions {value.positions})"
                )
            with torch.no_grad():
                return add_constant(gm, value.function(*constants), last)
        return [argument(item) for item in value] if isinstance(value, tuple | list) else value

    args = tuple(argument(value) for value in offer.arguments)
    node = add_call(last, offer.op, args, with_format(tensor_of(last), offer.memory_format))
    last.replace_all_uses_with(node)
    for dead in reversed([*match.inner, *match.results[: offer.taken + 1]]):
        gm.graph.erase_node(dead)
