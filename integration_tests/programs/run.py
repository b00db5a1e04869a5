"""Runs a program in eager mode and compiled, each in a fresh copy, and says where they differ."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchstrata

from integration_tests.programs.generate import generate
from integration_tests.programs.observe import Described, Observer, differences

FALLBACKS = ("a graph runs eagerly",)
CALLS = 3


class OutOfTime(BaseException):
    """A program runs for too long; no program catches it."""


def check(seed: int, backend: str | None) -> list[str]:
    """The differences of a seed's program."""
    return compare(generate(seed), backend)


def compare(text: str, backend: str | None) -> list[str]:
    """How the compiled program differs from eager mode: call by call, the first call that does.

    One that never ends in eager mode (it maps a list that grows meanwhile) says nothing.
    """
    try:
        eager = observe(text, lambda f: f)
    except OutOfTime:
        return []
    torchstrata.reset()
    compiled = observe(text, lambda f: torchstrata.compile(f, backend=backend))
    torchstrata.reset()
    for number, (one, other) in enumerate(zip(eager, compiled)):
        if backend != "eager" and (
            compiles_refused(one, other) or (number % 2 and refused_backward(one))
        ):
            return []
        found = differences(one, other, exact=backend == "eager")
        if found and backend != "eager" and number % 2 and replaces_data(text):
            return []
        contexts = LIKE_EAGER if found and backend != "eager" else ()
        if any(
            not differences(within(context, text, number), other, exact=False)
            for context in contexts
        ):
            return []
        if found:
            return [f"step {number}: {text}" for text in found]
    return []


def within(context: Callable[[], Any], text: str, number: int) -> Described:
    """What a step shows in eager mode when the program's call is made in a context."""
    calls = itertools.count()

    def compiler(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with context() if next(calls) == number // 2 else contextlib.nullcontext():
                return function(*args)

        return call

    return observe(text, compiler)[number]


def saved_apart() -> Any:
    """Lets autograd save copies.

    ``.data`` hides writes to what it has saved; it then computes with the new values. A compiled
    graph may have saved something else: a mask, a product, or a value to compute it from.
    """
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


class Looking(torch.overrides.TorchFunctionMode):
    """Reads the history of operands, as anybody may, before they are written to.

    A view whose base has got a history since passes for a leaf until then, and eager mode refuses
    to write to it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for operand in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(operand, torch.Tensor) and not operand.is_inference():
                operand.grad_fn  # noqa: B018
        return func(*args, **(kwargs or {}))


class Reordering(torch.overrides.TorchFunctionMode):
    """Adds elements in another order: their rounding errors may decide a comparison."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.sum, torch.Tensor.sum) and len(args) == 1 and not kwargs:
            args = (args[0].flatten().flip(0),)
        return func(*args, **(kwargs or {}))


LIKE_EAGER = (saved_apart, Looking, Reordering)
"""In which of these contexts eager mode runs makes no difference that a compiled program has to
keep.
"""


def replaces_data(text: str) -> bool:
    """Whether tensors get other memory between forward and backward; what autograd has saved is up
    to each operator.
    """
    return ".data = " in text[text.index("def disturb(") :]


def refused_backward(seen: Described) -> bool:
    """Eager mode's backward finds what it saved changed; compiled graphs may have saved something
    else.
    """
    return ("result[1]", ("str", "raised RuntimeError")) in seen


def compiles_refused(one: Described, other: Described) -> bool:
    """The last step, where a graph ran eagerly: legitimate for programs that raise."""
    return not one and bool(other) and other[0][0] == "fallbacks" and "Unsupported" in other[0][1]


def observe(text: str, compiler: Callable[..., Any]) -> list[Described]:
    """What can be seen after each call, and after its backward."""
    module = types.ModuleType("generated_program")
    sys.modules[module.__name__] = module
    seen: list[Described] = []
    with warnings.catch_warnings(record=True) as caught, restored():
        warnings.simplefilter("always")
        exec(compile(text, "<program>", "exec"), module.__dict__)
        state = module.State()
        run = {
            "module": lambda: compiler(state),
            "method": lambda: compiler(state.forward),
            "function": lambda: (lambda f: lambda *args: f(state, *args))(
                compiler(module.State.forward)
            ),
        }[module.KIND]()
        for call in range(CALLS):
            steps(module, state, run, call, seen)
    failed = [str(w.message) for w in caught if any(text in str(w.message) for text in FALLBACKS)]
    seen.append([("fallbacks", text[:2000]) for text in failed])
    del sys.modules[module.__name__]
    return seen


def steps(
    module: types.ModuleType, state: Any, run: Callable[..., Any], call: int, seen: list[Described]
) -> None:
    """One call, a change of its inputs, and backward."""
    outcome(lambda: module.between(state, call)) if call else None
    args = module.arguments(call)
    versions = [x._version for x in args if isinstance(x, torch.Tensor)]
    result = outcome(lambda: run(*args))
    written = [
        x._version > v for x, v in zip((x for x in args if isinstance(x, torch.Tensor)), versions)
    ]
    error = outcome(lambda: module.disturb(state, call, *args))
    seen.append(described(module, state, args, [result, written, error, torch.is_grad_enabled()]))
    error = outcome(lambda: backward(result))
    seen.append(described(module, state, args, [result, error, torch.is_grad_enabled()]))


def described(
    module: types.ModuleType, state: Any, args: list[Any], results: list[Any]
) -> Described:
    observer = Observer(module.__dict__)
    observer.describe("args", args)
    observer.describe("result", results)
    observer.describe("state", state)
    for name, value in list(vars(module).items()):
        if not name.startswith("__") and not isinstance(value, types.ModuleType):
            observer.describe(name, value)
    return observer.lines


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the name of what it raises."""
    try:
        return call()
    except Exception as error:
        return f"raised {type(error).__name__}"


def backward(result: Any) -> None:
    """Backward of all that a call returned, weighted."""
    tensors = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    losses = [
        (x.double() * (n + 1)).sum()
        for n, x in enumerate(tensors)
        if x.requires_grad and not x.is_complex()
    ]
    if losses:
        torch.stack(losses).sum().backward()


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Leaves no global setting changed."""
    torch.manual_seed(0)
    try:
        yield
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
        gc.collect(0)
