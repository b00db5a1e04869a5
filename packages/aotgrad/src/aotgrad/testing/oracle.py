"""An oracle for backends: a compiled program against eager, down to aliases, versions and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from symshapes import FakeTensorMode, ShapeEnv
from torch.utils import _pytree as pytree

from aotgrad.api import aot_function
from aotgrad.running.eager import run_eager

Make = Callable[[], Sequence[Any]]


def check_against_eager(
    f: Callable[..., Any],
    make: Make,
    *,
    compiled: Callable[..., Any] | None = None,
    calls: int = 2,
    seed: int = 0,
    writes: bool = True,
) -> None:
    """Raises AssertionError unless ``compiled`` behaves like ``f``.

    Args:
        f: the program; any pytree of tensors as result.
        make: makes one fresh set of inputs; called twice per run with the same random seed. Inputs
            may be leaves, non-leaves, and views of each other.
        compiled: ``aot_function(f)`` with eager kernels by default.
        calls: how often the compiled program is called, each time with fresh inputs.
        seed: of the random generator, set before inputs are made and before each call.
        writes: whether inputs (in the first call) and outputs (in the second) also change between
            forward and backward, where eager allows it.

    Compared: outputs (values, dtype, sizes, requires_grad, identity with inputs), which tensors
    share memory, what writes to outputs change, new values and version counters of the inputs, and
    the gradients of everything differentiable.
    """
    compiled = aot_function(f, forward_compiler=run_eager) if compiled is None else compiled
    for call in range(calls):
        ours, eager = observe(compiled, make, seed + call), observe(f, make, seed + call)
        for what, expected in eager.items():
            _compare(what, ours[what], expected)
        to_inputs = call % 2 == 0
        expected = _after_writes(f, make, seed + call, to_inputs) if writes else None
        if expected is not None:
            found = _after_writes(compiled, make, seed + call, to_inputs)
            assert found is not None, (
                f"a write to an {'input' if to_inputs else 'output'} before backward is refused"
            )
            _compare("after writes", found, expected)


def _after_writes(
    f: Callable[..., Any], make: Make, seed: int, to_inputs: bool
) -> list[torch.Tensor | None] | None:
    """Gradients where inputs, or outputs that share no memory with them, change before backward;
    None where that is refused.
    """
    torch.manual_seed(seed)
    inputs = list(make())
    leaves = _leaves_behind(inputs)
    torch.manual_seed(seed + 1)
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    outputs = [o for o in pytree.tree_leaves(f(*inputs)) if isinstance(o, torch.Tensor)]
    roots = _roots([*outputs, *tensors])
    _write_to(
        tensors if to_inputs else [o for o in outputs if not any(_shares(o, x) for x in tensors)],
        (),
    )
    with suppress(RuntimeError):
        return _gradients(roots, leaves)
    return None


def observe(f: Callable[..., Any], make: Make, seed: int) -> dict[str, Any]:
    """What a call returns, shares, changes, and what its gradients are."""
    torch.manual_seed(seed)
    inputs = list(make())
    leaves = _leaves_behind(inputs)
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    versions = [t._version for t in tensors]
    torch.manual_seed(seed + 1)
    outputs = pytree.tree_leaves(f(*inputs))
    results = [o for o in outputs if isinstance(o, torch.Tensor)]
    seen: dict[str, Any] = {
        "outputs": [_snapshot(o) for o in outputs],
        "requires_grad": [t.requires_grad for t in (*results, *tensors)],
        "has_history": [_has_history(t) for t in (*results, *tensors)],
        "identity": [[a is b for b in (*results, *tensors)] for a in results],
        "shared memory": [[_shares(a, b) for b in (*results, *tensors)] for a in results],
        "offsets": [[_distance(a, b) for b in (*results, *tensors)] for a in results],
        "inputs": [_snapshot(t) for t in tensors],
        "version bumps": [t._version - v for t, v in zip(tensors, versions)],
    }
    seen["gradients"] = _gradients(_roots([*results, *tensors]), leaves)
    seen["after writes"] = _write_to(results, tensors)
    return seen


def _leaves_behind(inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The leaves that require grad: inputs, or what the inputs were computed from."""
    found: dict[int, torch.Tensor] = {}
    for x in inputs:
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            continue
        if x.is_leaf:
            found[id(x)] = x
            continue
        stack = [x.grad_fn]
        while stack:
            node = stack.pop()
            variable = getattr(node, "variable", None)
            if variable is not None:
                found[id(variable)] = variable
            stack += [n for n, _ in getattr(node, "next_functions", ()) if n is not None]
    return list(found.values())


def _has_history(t: torch.Tensor) -> bool:
    try:
        return t.grad_fn is not None
    except RuntimeError:  # a view made under no_grad whose base was written to
        return False


def _roots(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [
        t
        for t in tensors
        if t.requires_grad and _has_history(t) and (t.is_floating_point() or t.is_complex())
    ]


def _gradients(
    roots: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    if not roots or not leaves:
        return []
    weights = [
        torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64).reshape(t.shape).to(t.dtype)
        for t in roots
    ]
    return list(torch.autograd.grad(roots, leaves, weights, allow_unused=True))


def _write_to(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[Any]:
    with torch.no_grad():
        for r in results:
            try:
                r.add_(1) if r.dtype is not torch.bool else r.logical_not_()
            except RuntimeError:  # an expanded tensor refuses, on both sides
                continue
    return [_snapshot(t) for t in (*results, *tensors)]


def _snapshot(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _distance(a: torch.Tensor, b: torch.Tensor) -> int | None:
    is_visible = _shares(a, b) and a.numel() and b.numel()  # an empty tensor has no address
    return a.data_ptr() - b.data_ptr() if is_visible else None


def _compare(what: str, ours: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(ours) == len(expected), f"{what}: {len(ours)} instead of {len(expected)}"
        for i, (a, b) in enumerate(zip(ours, expected)):
            _compare(f"{what}[{i}]", a, b)
    elif isinstance(expected, torch.Tensor):
        assert isinstance(ours, torch.Tensor), f"{what}: {ours!r} instead of a tensor"
        tight: dict[str, Any] = (
            {"rtol": 1e-10, "atol": 1e-12}
            if expected.dtype in (torch.float64, torch.complex128)
            else {}
        )
        torch.testing.assert_close(
            ours, expected, equal_nan=True, msg=lambda text: f"{what}: {text}", **tight
        )
    else:
        assert ours == expected, f"{what}: {ours!r} instead of {expected!r}"


def capture_symbolically(
    f: Callable[..., Any], examples: Sequence[Any], dynamic: dict[int, Sequence[int]] | None = None
) -> torch.fx.GraphModule:
    """A captured graph (C1) of a function that ``torch.fx.symbolic_trace`` can trace.

    Args:
        f: the function; no control flow on tensors.
        examples: real tensors.
        dynamic: for each input index the dimensions that get a size symbol; equal sizes get one
            symbol.
    """
    gm = torch.fx.symbolic_trace(f)
    mode = FakeTensorMode(ShapeEnv())
    placeholders = gm.graph.find_nodes(op="placeholder")
    by_size: dict[int, torch.SymInt] = {}
    for i, (node, example) in enumerate(zip(placeholders, examples)):
        symbols = {
            d: by_size.setdefault(example.shape[d], _symbol(mode, example, d, node.name))
            for d in (dynamic or {}).get(i, ())
        }
        node.meta["val"] = mode.from_real(example, source=f"L[{node.name!r}]", symbols=symbols)
        node.meta["source"] = f"L[{node.name!r}]"
        node.meta["static"] = isinstance(example, torch.nn.Parameter)
    with gm.graph.inserting_before(placeholders[0] if placeholders else None):
        for symbol in by_size.values():
            node = gm.graph.placeholder(str(symbol.node.expr))
            node.meta["val"] = symbol
    gm.recompile()
    return gm


def _symbol(mode: FakeTensorMode, example: torch.Tensor, d: int, name: str) -> torch.SymInt:
    return mode.shape_env.create_symbol(example.shape[d], f"{name}.size({d})")
