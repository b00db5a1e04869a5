"""Forms of calling an operator of the database, through ``torchstrata.compile(fullgraph=True)``.

``keyword`` passes every argument by keyword, in a random order, ``keyword_method`` and
``keyword_inplace`` to the methods; ``inference`` calls the compiled
function in inference mode, ``inference_inputs`` gives it inference tensors there, ``inside`` lets
the function enter inference mode itself. What they have to equal passes arguments by position, with
gradients (``positional``, ``method``) and without (``no_grad``, ``inplace``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import random
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchstrata
from torch.utils import _pytree as pytree

from integration_tests.operators.check import (
    DTYPES,
    KNOWN,
    LARGEST,
    VALUES_UNDEFINED,
    Mismatch,
    Outcome,
    Sample,
    as_sample,
    choose_gradients,
    classify,
    compare,
    draws_random_numbers,
    eager_works,
    exact_of,
    leaves_of,
    reference,
    replica,
    run_backward,
    severity,
    shared,
    strided,
)
from integration_tests.operators.database import full_name

BASES = {
    "keyword": "positional",
    "keyword_method": "method",
    "keyword_inplace": "inplace",
    "inference": "no_grad",
    "inference_inputs": "no_grad",
    "inside": "no_grad",
}
"""What passes in the second form has to pass in the first."""
TESTING = str(Path(torch.testing.__file__).parent)
TRAINED = ("positional", "keyword", "method", "keyword_method")


@dataclass
class Call:
    """A sample and the arguments of its call, tensors among them."""

    sample: Sample
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class FormOutcome(Outcome):
    """``refused``: samples that eager refuses in this form; ``failed``: those that fail alone."""

    refused: int = 0
    failed: int = 0


class Variant:
    """An entry of the database whose function is the method that the form calls, if any."""

    def __init__(self, entry: Any, form: str) -> None:
        self.entry, self.op = entry, entry.op
        if form.endswith("method"):
            self.op = entry.method_variant
        elif form.endswith("inplace"):
            self.op = entry.inplace_variant

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


def usual_dtype(op: Any) -> str:
    """float32, or the first that the operator has."""
    return next(
        (name for name, dtype in DTYPES.items() if op.supports_dtype(dtype, "cpu")), "float32"
    )


def calls_of(op: Any, dtype: torch.dtype, form: str, count: int) -> tuple[list[Call], int]:
    """Calls of the form, spread over the samples; how many of these eager refuses by keyword."""
    found: list[Call] = []
    for given in op.sample_inputs("cpu", dtype, requires_grad=False):
        if not strided(given):
            continue
        sample = as_sample(op, given)
        if sum(t.numel() for t in sample.tensors) <= LARGEST and eager_works(sample):
            found.append(Call(sample, (given.input, *given.args), dict(given.kwargs)))
        if len(found) >= 40:
            break
    step = max(1, len(found) / count)
    chosen = [found[int(i * step)] for i in range(min(count, len(found)))]
    for call in chosen:
        call.sample.random = draws_random_numbers(call.sample)
    if not form.startswith("keyword"):
        return chosen, 0
    spelled = [by_keyword(op, call) for call in chosen]
    return [call for call in spelled if call is not None], spelled.count(None)


def by_keyword(op: Any, call: Call) -> Call | None:
    """The call with all arguments by keyword, in a random order, or None where eager refuses it."""
    function = op.op
    first = 1 if inspect.ismethoddescriptor(function) else 0  # a method's own tensor has no name
    for names in candidates(op, len(call.args)):
        named = dict(zip(names[first:], call.args[first:]))
        if len(named) < len(call.args) - first or named.keys() & call.kwargs.keys():
            continue
        items = [*named.items(), *call.kwargs.items()]
        random.Random(len(items)).shuffle(items)
        spelled = Call(call.sample, call.args[:first], dict(items))
        if gives_the_same(op, call, spelled):
            return spelled
    return None


def candidates(op: Any, count: int) -> Iterator[list[str]]:
    """Possible names of the positional arguments: of Python functions, of each ATen overload."""
    cells = getattr(op.op, "__closure__", None) or ()
    functions = [op.op, *(cell.cell_contents for cell in cells)]
    with contextlib.suppress(AttributeError):
        functions.append(operator.attrgetter(op.name)(torch))
    own = [parameters(function) for function in functions]
    yield from (names[:count] for names in (*own, ["input"]))
    if isinstance(op.op, torch._ops.OpOverload):
        yield [a.name for a in op.op._schema.arguments][:count]
    names = {op.name.rpartition(".")[2], op.name.replace(".", "_"), op.aten_name or ""}
    for name in sorted(names):
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            native = ["input" if a.name == "self" else a.name for a in schema.arguments]
            yield (own[0] + native[len(own[0]) :])[:count]


def parameters(function: Any) -> list[str]:
    """The leading parameters that take positional and keyword arguments."""
    with contextlib.suppress(TypeError, ValueError):  # raised for built-in functions
        found = inspect.signature(function).parameters.values()
        return [
            p.name for p in itertools.takewhile(lambda p: p.kind is p.POSITIONAL_OR_KEYWORD, found)
        ]
    return []


def gives_the_same(op: Any, call: Call, spelled: Call) -> bool:
    """Whether eager takes the spelling, for the same results."""
    results = []
    for c in (call, spelled):
        args, kwargs = pytree.tree_map_only(torch.Tensor, replica, (c.args, c.kwargs))
        torch.manual_seed(0)
        try:
            results.append(tensors_in(op.op(*args, **kwargs)))
        except Exception:
            return False
    if call.sample.random or full_name(op) in VALUES_UNDEFINED:
        return len(results[0]) == len(results[1])
    try:
        torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    return True


def as_users_code(function: Any) -> None:
    """Lets capture inline the database's own functions, which it would take for torch's."""
    if isinstance(function, functools.partial):
        as_users_code(function.func)
    if not isinstance(function, types.FunctionType) or TESTING not in function.__code__.co_filename:
        return
    if function.__name__ == "wrapper_set_seed":  # random operators are compared by sizes only
        function.__code__ = _call_it.__code__
        return
    function.__code__ = _moved(function.__code__)
    reached = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in [*reached, *map(function.__globals__.get, function.__code__.co_names)]:
        as_users_code(value)


def _call_it(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def _moved(code: types.CodeType) -> types.CodeType:
    inner = (_moved(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename="<database>", co_consts=tuple(inner))


def tensors_in(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor))


def function_of(op: Any, calls: Sequence[Call], form: str) -> Callable[..., Any]:
    """One function of all samples' tensors, which makes the calls."""
    scope: dict[str, Any] = {"op": op.op, "torch": torch}
    given = [
        (id(t), f"t{i}_{k}") for i, c in enumerate(calls) for k, t in enumerate(c.sample.tensors)
    ]
    waiting = list(given)

    def spell(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            place = [tensor for tensor, _ in waiting].index(id(value))
            return waiting.pop(place)[1]
        if type(value) in (list, tuple):
            inner = "".join(f"{spell(v)}, " for v in value)
            return f"[{inner}]" if type(value) is list else f"({inner})"
        if type(value) is dict:
            return "{" + "".join(f"{k!r}: {spell(v)}, " for k, v in value.items()) + "}"
        name = f"c{len(scope)}"
        scope[name] = value
        return name

    lines = []
    for call in calls:
        args = [spell(v) for v in call.args]
        named = [(name, spell(v)) for name, v in call.kwargs.items()]
        args += ["**{" + ", ".join(f"{name!r}: {v}" for name, v in named) + "}"]  # "from", too
        lines.append(f"            op({', '.join(args)}),\n")
    inside = "with torch.inference_mode():" if form == "inside" else "if True:"
    text = f"def program({', '.join(name for _, name in given)}):\n    {inside}\n"
    text += f"        return (\n{''.join(lines)}        )\n"
    exec(compile(text, "<operator calls>", "exec"), scope)
    return scope["program"]


def mode_of(form: str) -> Any:
    """What the compiled function is called in."""
    if form.startswith("inference"):
        return torch.inference_mode()
    return torch.no_grad() if form == "no_grad" else nullcontext()


def inputs_of(sample: Sample, form: str) -> list[torch.Tensor]:
    """Fresh tensors for a call of the form."""
    with torch.inference_mode(form == "inference_inputs"):
        return leaves_of(sample) if form in TRAINED else [replica(t) for t in sample.tensors]


def check_calls(
    op: Any, calls: Sequence[Call], form: str, backward: bool, backend: Any, options: Any
) -> None:
    """Raises Mismatch, or what compiling raises."""
    torchstrata.reset()
    inputs = [inputs_of(call.sample, form) for call in calls]
    flat = [t for group in inputs for t in group]
    compiled = torchstrata.compile(
        function_of(op, calls, form), fullgraph=True, backend=backend, options=options
    )
    with mode_of(form):
        outputs = compiled(*flat)
    if torchstrata.counters["fallbacks"]:
        raise Mismatch("fell back to eager")
    results = [list(tensors_in(output)) for output in outputs]
    made = run_backward([r for rs in results for r in rs], flat) if backward else []
    for call, given, got in zip(calls, inputs, results):
        own = [made.pop(0) for t in given if t.requires_grad] if made else []
        judge(op, call, form, backward, given, got, own)


def judge(
    op: Any, call: Call, form: str, backward: bool, given: list[torch.Tensor],
    got: list[torch.Tensor], own: list[torch.Tensor | None],
) -> None:  # fmt: skip
    """Raises Mismatch unless one call's results, inputs and gradients are as eager's."""
    sample = call.sample
    values = full_name(op) not in VALUES_UNDEFINED and not sample.random
    program, kept = function_of(op, [call], form), list[torch.Tensor]()

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept[:] = tensors_in(program(*tensors))
        return tuple(kept)

    ours = inputs_of(sample, form)
    with mode_of(form):
        eager = reference(Sample(run, sample.tensors, sample.text), ours, backward)
    exact = exact_of(sample, backward, eager)
    compare(sample, got, eager.results, exact.results, "result", values)
    compare(sample, [x.detach() for x in given], eager.inputs, exact.inputs, "input", values)
    if shared(got, given) != eager.aliases:
        raise Mismatch(
            f"results alias the inputs {shared(got, given)}, not {eager.aliases} of {sample.text}"
        )
    kinds = [[kind_of(t) for t in (*rs, *xs)] for rs, xs in ((got, given), (kept, ours))]
    if kinds[0] != kinds[1]:
        raise Mismatch(f"results and inputs are {kinds[0]}, eager's {kinds[1]} of {sample.text}")
    versions = [[t._version for t in ts if not t.is_inference()] for ts in (given, ours)]
    if versions[0] != versions[1]:
        raise Mismatch(
            f"versions of inputs are {versions[0]}, eager's {versions[1]} of {sample.text}"
        )
    if eager.gradients:
        compare(sample, own, eager.gradients, exact.gradients, "gradient", values)


def kind_of(t: torch.Tensor) -> str:
    return "inference" if t.is_inference() else "ordinary"


def check_form(
    op: Any, dtype: torch.dtype, form: str, count: int, backend: Any = None, options: Any = None
) -> FormOutcome:
    """One operator in one form, all samples in one function; where that fails, each alone."""
    outcome = FormOutcome(full_name(op), str(dtype).removeprefix("torch."), "skip")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    op = Variant(op, form)
    if op.op is None or not op.supports_dtype(dtype, "cpu"):
        return outcome
    calls, outcome.refused = calls_of(op, dtype, form, count)
    outcome.samples = len(calls)
    if not calls:
        return outcome
    backward = (
        form in TRAINED
        and op.supports_autograd
        and any([choose_gradients(call.sample) for call in calls])
    )
    outcome.status = "pass"
    as_users_code(op.op)
    try:
        check_calls(op, calls, form, backward, backend, options)
    except Exception as error:
        alone = [
            found
            for call in calls
            if (found := check_alone(op, call, form, backward, backend, options)) is not None
        ]
        outcome.failed = len(alone)
        together, reason = classify(error)
        outcome.status, outcome.reason = min(
            alone or [(together, f"{reason}, only with all samples in one graph")], key=severity
        )
        mark, why = KNOWN.get(f"{outcome.dtype}:{outcome.op}") or KNOWN.get(outcome.op, ("", ""))
        if why and mark in outcome.reason:
            outcome.status, outcome.reason = "known", f"{why}: {outcome.reason}"
    return outcome


def check_alone(
    op: Any, call: Call, form: str, backward: bool, backend: Any, options: Any
) -> tuple[str, str] | None:
    """Status and reason of one call that does not pass."""
    try:
        check_calls(op, [call], form, backward, backend, options)
    except Exception as error:
        status, reason = classify(error)
        return status, reason if status == "failure" else f"{reason} [{call.sample.text}]"
    return None
