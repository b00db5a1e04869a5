"""Hypothesis strategies: integer formulas with their Python meaning, and small tensor programs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st


@dataclass(frozen=True)
class Formula:
    """An integer formula: ``apply`` runs it on a tuple of ints or of symbolic ints alike; ``text``
    is it as Python.
    """

    text: str
    apply: Callable[[tuple[Any, ...]], Any]


_BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}


def formulas(variables: int = 3, depth: int = 6) -> st.SearchStrategy[Formula]:
    """Formulas over at most 3 ``variables``, with ``depth`` leaves at most; division is by positive
    numbers or a variable.
    """
    leaf = st.integers(0, variables - 1).map(lambda i: Formula("xyz"[i], lambda v, i=i: v[i]))
    number = st.integers(-6, 12).map(lambda n: Formula(str(n), lambda v, n=n: n))
    positive = st.integers(1, 8).map(lambda n: Formula(str(n), lambda v, n=n: n))

    def combine(inner: st.SearchStrategy[Formula]) -> st.SearchStrategy[Formula]:
        def build(op: str, a: Formula, b: Formula) -> Formula:
            return Formula(
                f"({a.text} {op} {b.text})", lambda v: _BINARY[op](a.apply(v), b.apply(v))
            )

        plain = st.builds(build, st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner)
        divide = st.builds(build, st.sampled_from(["//", "%"]), inner, positive | leaf)
        scaled = st.builds(lambda a, n: build("*", a, n), inner, positive)
        return plain | divide | scaled

    return st.recursive(leaf | number, combine, max_leaves=depth)


@dataclass(frozen=True)
class Step:
    """One op of a tensor program: a name of ``STEPS``, operands by index into the values so far, a
    dimension of the first.
    """

    name: str
    left: int
    right: int
    dim: int


def _dim(x: Any, d: int) -> int:
    return d % max(x.dim(), 1)


STEPS: dict[str, Callable[[Any, Any, int], Any]] = {
    "add": lambda x, y, d: x + y,
    "sub_scaled": lambda x, y, d: torch.sub(x, y, alpha=2),
    "mul": lambda x, y, d: x * y,
    "div": lambda x, y, d: x / y,
    "add_number": lambda x, y, d: x + 1,
    "mul_float": lambda x, y, d: 0.5 * x,
    "maximum": lambda x, y, d: torch.maximum(x, y),
    "compare": lambda x, y, d: x > y,
    "where": lambda x, y, d: torch.where(x > 0, x, y),
    "relu": lambda x, y, d: x.relu(),
    "exp": lambda x, y, d: x.exp(),
    "neg": lambda x, y, d: -x,
    "sigmoid": lambda x, y, d: x.sigmoid(),
    "clamp": lambda x, y, d: x.clamp(0, 1.5),
    "gelu": lambda x, y, d: torch.nn.functional.gelu(x),
    "sum": lambda x, y, d: x.sum(_dim(x, d)),
    "mean": lambda x, y, d: x.mean(_dim(x, d), keepdim=True),
    "amax": lambda x, y, d: x.amax(_dim(x, d)),
    "max": lambda x, y, d: x.max(_dim(x, d))[0],
    "argmax": lambda x, y, d: x.argmax(_dim(x, d)),
    "var": lambda x, y, d: x.var(_dim(x, d), correction=0),
    "any": lambda x, y, d: (x > 0).any(_dim(x, d)),
    "total": lambda x, y, d: x.sum(),
    "softmax": lambda x, y, d: x.softmax(_dim(x, d)),
    "cumsum": lambda x, y, d: x.cumsum(_dim(x, d)),
    "matmul": lambda x, y, d: x @ y,
    "transpose": lambda x, y, d: x.transpose(0, _dim(x, d)),
    "unsqueeze": lambda x, y, d: x.unsqueeze(_dim(x, d)),
    "squeeze": lambda x, y, d: x.squeeze(_dim(x, d)),
    "tail": lambda x, y, d: x.narrow(_dim(x, d), 1, x.shape[_dim(x, d)] - 1),
    "slice": lambda x, y, d: x[1:],
    "strided_slice": lambda x, y, d: x[..., ::2],
    "last": lambda x, y, d: x[..., -1],
    "first": lambda x, y, d: x.select(_dim(x, d), 0),
    "expand": lambda x, y, d: x.unsqueeze(0).expand(3, *x.shape),
    "flatten": lambda x, y, d: x.reshape(-1),
    "cat": lambda x, y, d: torch.cat([x, y], _dim(x, d)),
    "stack": lambda x, y, d: torch.stack([x, x], _dim(x, d)),
    "contiguous": lambda x, y, d: x.contiguous(),
    "clone": lambda x, y, d: x.clone(),
    "double": lambda x, y, d: x.double(),
    "long": lambda x, y, d: x.clamp(-9, 9).long(),
    "bfloat16": lambda x, y, d: x.bfloat16(),
    "add_in_place": lambda x, y, d: x.clone().add_(y),
    "zeros_like": lambda x, y, d: torch.zeros_like(x),
    "ones": lambda x, y, d: x.new_ones(x.shape[0]),
    "split": lambda x, y, d: x.split(2, _dim(x, d))[0],
    "mul_size": lambda x, y, d: x * x.shape[0],
    "permute": lambda x, y, d: x.permute([(i + d) % x.dim() for i in range(x.dim())]),
}


def programs(length: int = 8) -> st.SearchStrategy[list[Step]]:
    """Programs of up to ``length`` steps, for inputs of any number and rank; ``run_program`` runs
    them.
    """
    step = st.builds(
        Step,
        st.sampled_from(sorted(STEPS)),
        st.integers(0, 9),
        st.integers(0, 9),
        st.integers(0, 3),
    )
    return st.lists(step, min_size=1, max_size=length)


def run_program(
    steps: Sequence[Step], inputs: Sequence[Any], *, lenient: bool = False
) -> tuple[list[Any], list[Step]]:
    """All values of a program, inputs first, and the steps that ran: where ``lenient``, without
    those that raise.
    """
    values, ran = list(inputs), []
    for step in steps:
        x, y = values[step.left % len(values)], values[step.right % len(values)]
        try:
            out = STEPS[step.name](x, y, step.dim)
        except (RuntimeError, IndexError):
            if not lenient:
                raise
            continue
        values.append(out)
        ran.append(
            Step(step.name, step.left % len(values[:-1]), step.right % len(values[:-1]), step.dim)
        )
    return values, ran
