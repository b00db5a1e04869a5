"""One operator of the database through aotgrad and a CPU back end, compared with eager by the rule
of ``rule.py``.

All samples of an operator go into one graph; when that fails, each is tried alone so that the
report says which one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aotgrad
import inductor_cpp
import inductor_triton
import loopir
import symshapes
import torch
from loopir.testing import EvaluatorCodeGenerator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from integration_tests.operators.database import full_name
from integration_tests.operators.layouts import LAYOUTS
from integration_tests.rule import assert_by_rule, to_double

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.float16,
    torch.int32, torch.int8, torch.uint8,
    torch.int16, torch.complex64, torch.complex128,
)}  # fmt: skip
LARGEST = 20_000
DEVICES = {"evaluator": "cpu", "cpp": "cpu", "triton": "cuda"}
"""Where each code generator's programs run."""

# Their values are whatever memory holds: only sizes, strides and dtype can be compared.
VALUES_UNDEFINED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


# Differences that were looked into, by operator (and dtype): a part of the reason that tells them,
# and why they stay.
KNOWN = {
    "nn.functional.normalize": (
        "gradient",
        "the gradient is zero but for rounding: normalised over one element",
    ),
    "float32:_batch_norm_with_update": (
        "gradient",
        "the gradient is zero but for rounding: the mean of two elements",
    ),
    **{
        f"float32:{name}": ("gradient", "as _batch_norm_with_update")
        for name in ("native_batch_norm", "_native_batch_norm_legit", "nn.functional.batch_norm")
    },
    "float32:nn.functional.instance_norm": (
        "gradient",
        "terms that cancel: the error is two roundings of them",
    ),
    "cdist": (
        "_cdist_backward",
        "the meta kernel of an empty batch gives another shape than the kernel",
    ),
    "masked.prod": (
        "nan elsewhere",
        "prod_backward divides inf by inf in eager; traced, it takes the path without division",
    ),
    "unsafe_chunk": (
        "alias",
        "the graph has no aliases of what is documented as unsafe to write to",
    ),
    "unsafe_split": ("alias", "as unsafe_chunk"),
    **{
        f"{half}:_batch_norm_with_update": (f"float32, eager torch.{half}", "as native_batch_norm")
        for half in ("bfloat16", "float16")
    },
    "native_batch_norm": ("float32, eager torch.", "statistics for the backward stay in float32"),
    "float64:var_mean": (
        "result 1",
        "in float64 eager is its own judge; the mean of values that cancel differs by its rounding",
    ),
    "float64:std_mean": ("result 1", "as var_mean"),
    "float64:signal.windows.blackman": ("result 0", "as var_mean: terms that cancel to 1e-17"),
    "float64:signal.windows.nuttall": ("result 0", "as var_mean: terms that cancel to 1e-17"),
    "_native_batch_norm_legit": ("float32, eager torch.", "as native_batch_norm"),
}


@dataclass
class Outcome:
    """What became of one operator in one dtype.

    ``status``: ``pass``, ``extern`` (right, but no kernel of ours took part), ``data`` (sizes or
    branches need values, so the program stays eager there), ``exception`` (compiling raised),
    ``known`` (a difference that KNOWN explains), ``failure`` (wrong result, or the compiled call
    raised), ``skip`` (no sample).
    """

    op: str
    dtype: str
    status: str
    reason: str = ""
    samples: int = 0
    externs: list[str] = field(default_factory=list)


class Mismatch(Exception):
    """A compiled result that the rule does not allow, or a compiled call that raised where eager
    does not.
    """


@dataclass
class Sample:
    """A call of the operator as a function of tensors."""

    call: Callable[..., tuple[torch.Tensor, ...]]
    tensors: list[torch.Tensor]
    text: str
    wanted: list[bool] = field(default_factory=list)
    random: bool = False


def samples_of(
    op: Any, dtype: torch.dtype, count: int, device: str = "cpu", layout: str = "plain"
) -> list[Sample]:
    """Small samples, spread over those that the operator has, on which eager works; their tensors
    in this layout.
    """
    found: list[Sample] = []
    for sample in op.sample_inputs(device, dtype, requires_grad=False):
        if not strided(sample):
            continue
        made = as_sample(op, sample)
        made.tensors = [LAYOUTS[layout](t) if t.is_floating_point() else t for t in made.tensors]
        if sum(t.numel() for t in made.tensors) <= LARGEST and eager_works(made):
            found.append(made)
        if len(found) >= 40:
            break
    step = max(1, len(found) / count)
    return [found[int(i * step)] for i in range(min(count, len(found)))]


def strided(sample: Any) -> bool:
    """Whether all tensors are ordinary ones; sparse ones are not compiled."""
    leaves = pytree.tree_leaves((sample.input, tuple(sample.args), dict(sample.kwargs)))
    return all(x.layout is torch.strided for x in leaves if isinstance(x, torch.Tensor))


def as_sample(op: Any, sample: Any) -> Sample:
    """The sample's tensors as arguments; everything else stays in the closure. Results are
    flattened to tensors.
    """
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        if torch.float64 in {t.dtype for t in tensors} and kwargs.get("dtype") in (
            torch.float32,
            torch.bfloat16,
        ):
            kwargs["dtype"] = torch.float64
        result = op.op(first, *args, **kwargs)
        return tuple(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))

    return Sample(
        call, [leaves[i] for i in places], describe((sample.input, sample.args, sample.kwargs))
    )


def describe(value: Any) -> str:
    """Arguments in short: tensors as dtype and sizes."""

    def short(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        strides = (
            ""
            if leaf.is_contiguous() or leaf.layout is not torch.strided
            else f"/{list(leaf.stride())}"
        )
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"

    return str(pytree.tree_map(short, value))[:300]


def eager_works(sample: Sample) -> bool:
    try:
        results = sample.call(*map(replica, sample.tensors))
    except Exception:
        return False
    return bool(results) and all(r.layout is torch.strided for r in results)


def replica(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, also of overlapping memory."""
    storage = tensor.detach().untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        storage, tensor.storage_offset(), tensor.size(), tensor.stride()
    )
    return copy.conj() if tensor.is_conj() else copy


def back_end(
    generator: str, store: loopir.ArtifactStore, programs: list[loopir.HostProgram]
) -> Callable[..., Any]:
    """``aot_backend`` over the named code generator; remembers the programs that it makes."""
    codegens: dict[str, loopir.CodeGenerator] = {
        "cpu": EvaluatorCodeGenerator()
        if generator == "evaluator"
        else inductor_cpp.CppCodeGenerator()
    }
    if generator == "triton":
        codegens["cuda"] = inductor_triton.TritonCodeGenerator()

    def compiler(gm: torch.fx.GraphModule, examples: Sequence[object]) -> loopir.HostProgram:
        program = loopir.compile_graph(
            gm, examples, codegens=codegens, store=store, options=loopir.Options(check=True)
        )
        programs.append(program)
        return program

    return aotgrad.aot_backend(compiler)


def graph_of(samples: Sequence[Sample]) -> torch.fx.GraphModule:
    """All samples' calls in one graph, with the tensors of the first sample as the first
    placeholders.
    """
    graph = torch.fx.Graph()
    calls = []
    for number, sample in enumerate(samples):
        inputs = [graph.placeholder(f"x{number}_{i}") for i in range(len(sample.tensors))]
        calls.append(graph.call_function(sample.call, tuple(inputs)))
    graph.output(tuple(calls))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def choose_gradients(sample: Sample) -> bool:
    """Decides which inputs require gradients: all floating ones, or the first alone, as far as
    eager can.
    """
    floating = [t.dtype.is_floating_point for t in sample.tensors]
    for wanted in (floating, [f and i == 0 for i, f in enumerate(floating)]):
        sample.wanted = wanted
        try:
            if reference(sample, leaves_of(sample), True).gradients:
                return True
        except Exception:
            continue
    sample.wanted = []
    return False


def leaves_of(sample: Sample) -> list[torch.Tensor]:
    wanted = sample.wanted or [False] * len(sample.tensors)
    return [replica(t).requires_grad_(want) for t, want in zip(sample.tensors, wanted)]


class RandomOps(TorchDispatchMode):
    """Notices operators that draw random numbers, whatever the program does to the generator's
    state.
    """

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def draws_random_numbers(sample: Sample) -> bool:
    with RandomOps() as mode:
        sample.call(*map(replica, sample.tensors))
    return mode.seen


def gradients(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Gradients of a weighted sum of all results; the weights are the same in every precision."""
    outputs = [r for r in results if r.requires_grad and r.dtype.is_floating_point]
    sources = [x for x in inputs if x.requires_grad]
    if not outputs or not sources:
        return []
    weights = [
        torch.linspace(0.5, 1.5, r.numel(), dtype=torch.float64).reshape(r.shape).to(r)
        for r in outputs
    ]
    return list(torch.autograd.grad(outputs, sources, weights, allow_unused=True))


def shared(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[list[int]]:
    """For each result, the inputs whose memory it shares."""
    places = [x.untyped_storage().data_ptr() for x in inputs]
    own = [r.untyped_storage().data_ptr() for r in results]
    return [[i for i, place in enumerate(places) if place == at != 0] for at in own]


@dataclass
class Run:
    """What one call gave: results, gradients of the inputs, the inputs after it, and which of them
    each result aliases.
    """

    results: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    inputs: list[torch.Tensor]
    aliases: list[list[int]]


def reference(sample: Sample, inputs: list[torch.Tensor], backward: bool) -> Run:
    """Eager's."""
    results = sample.call(*inputs)
    aliases = shared(results, inputs)
    made = gradients(results, inputs) if backward else []
    return Run([r.detach() for r in results], made, [x.detach() for x in inputs], aliases)


def exact_of(sample: Sample, backward: bool, eager: Run) -> Run:
    """Eager in float64; eager itself where the operator refuses that or where nothing is gained."""
    if not any(t.is_floating_point() or t.is_complex() for t in sample.tensors):
        return eager
    try:
        exact = reference(sample, to_double(leaves_of(sample)), backward)
    except Exception:
        return eager
    same = len(exact.results) == len(eager.results) and len(exact.gradients) == len(eager.gradients)
    return exact if same else eager


def compare(
    sample: Sample,
    got: Sequence[Any],
    eager: Sequence[Any],
    exact: Sequence[Any],
    what: str,
    values: bool,
) -> None:
    """Raises Mismatch unless each tensor is as the rule says (``values``: not only sizes, strides
    and dtype).
    """
    for i, (a, b, c) in enumerate(zip(got, eager, exact, strict=True)):
        if (a is None) != (b is None):
            raise Mismatch(f"{what} {i} is None in one of both, of {sample.text}")
        if a is None:
            continue
        try:
            compare_tensors(
                a.detach(), b, b if c is None else c, f"{what} {i}", values, what == "gradient"
            )
        except AssertionError as error:
            raise Mismatch(f"{error} of {sample.text}") from None


def compare_tensors(
    got: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor,
    what: str,
    values: bool,
    any_layout: bool,
) -> None:
    """The rule; nan and infinities must be where eager has them.

    ``any_layout``: for gradients, whose strides autograd changes to those of the leaf when it
    accumulates them.
    """
    assert got.shape == eager.shape, f"{what}: shape {tuple(got.shape)}, eager {tuple(eager.shape)}"
    if any_layout:
        got, eager = (x.clone(memory_format=torch.contiguous_format) for x in (got, eager))
    if not values:
        filled = torch.empty_strided(got.shape, got.stride(), dtype=got.dtype, device=got.device)
        got, exact = filled.copy_(eager), eager
    if eager.dtype.is_complex:
        got, eager, exact = (
            torch.view_as_real(x.resolve_conj()) for x in (got, eager, exact.to(torch.complex128))
        )
    if eager.dtype.is_floating_point:
        assert torch.equal(got.isnan(), eager.isnan()), f"{what}: nan elsewhere"
        infinite = eager.isinf()
        assert torch.equal(got[infinite], eager[infinite]), f"{what}: other infinities"
    assert_by_rule(got, eager, exact, what)


def check_graph(
    op: Any, samples: Sequence[Sample], backward: bool, compile_backend: Callable[..., Any]
) -> None:
    """Raises Mismatch, or what compiling raises."""
    inputs = [leaves_of(sample) for sample in samples]
    flat = [t for group in inputs for t in group]
    graph, mode = (
        graph_of(samples),
        symshapes.FakeTensorMode(symshapes.ShapeEnv(allow_unbacked=True)),
    )
    for node, tensor in zip(graph.graph.find_nodes(op="placeholder"), flat):
        node.meta["val"] = mode.from_real(tensor)
    compiled = compile_backend(graph, flat)
    try:
        outputs = list(compiled(*flat))
    except Exception as error:
        raise Mismatch(f"the compiled call raised {type(error).__name__}: {error}") from error
    got_gradients = run_backward(outputs, flat) if backward else []
    for sample, given in zip(samples, inputs):
        values = full_name(op) not in VALUES_UNDEFINED and not sample.random
        eager = reference(sample, leaves_of(sample), backward)
        exact = exact_of(sample, backward, eager)
        got = [outputs.pop(0) for _ in eager.results]
        compare(sample, got, eager.results, exact.results, "result", values)
        compare(sample, [x.detach() for x in given], eager.inputs, exact.inputs, "input", values)
        if shared(got, given) != eager.aliases:
            raise Mismatch(
                f"results alias the inputs {shared(got, given)}, eager's {eager.aliases} of "
                f"{sample.text}"
            )
        own = [got_gradients.pop(0) for t in given if t.requires_grad] if got_gradients else []
        if eager.gradients:
            compare(sample, own, eager.gradients, exact.gradients, "gradient", values)


def run_backward(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    try:
        return gradients(outputs, inputs)
    except Exception as error:
        raise Mismatch(f"the compiled backward raised {type(error).__name__}: {error}") from error


def check_operator(
    op: Any,
    dtype: torch.dtype,
    generator: str,
    store: loopir.ArtifactStore,
    count: int = 4,
    layout: str = "plain",
) -> Outcome:
    """One operator: forward, and backward in float32 where eager has one."""
    outcome = Outcome(full_name(op), str(dtype).removeprefix("torch."), "skip")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    if not op.supports_dtype(dtype, DEVICES[generator]):
        outcome.reason = "dtype not supported by eager"
        return outcome
    samples = samples_of(op, dtype, count, DEVICES[generator], layout)
    outcome.samples = len(samples)
    if not samples:
        outcome.reason = "no small sample that eager runs"
        return outcome
    backward = (
        dtype is torch.float32
        and op.supports_autograd
        and any([choose_gradients(s) for s in samples])
    )
    for sample in samples:
        sample.random = draws_random_numbers(sample)
    programs: list[loopir.HostProgram] = []
    backend = back_end(generator, store, programs)
    try:
        check_graph(op, samples, backward, backend)
    except Exception as error:
        alone = [
            found
            for sample in samples
            if (found := check_alone(op, sample, backward, backend)) is not None
        ]
        together, reason = classify(error)
        outcome.status, outcome.reason = min(
            alone or [(together, f"{reason}, only with all samples in one graph")], key=severity
        )
        mark, why = KNOWN.get(f"{outcome.dtype}:{outcome.op}") or KNOWN.get(outcome.op, ("", ""))
        if outcome.op.startswith("fft.") and torch.__version__ < "2.13":
            mark, why = "stride", "this torch's meta kernel gives other strides than its kernel"
        if why and outcome.status in ("failure", "exception") and mark in outcome.reason:
            outcome.status, outcome.reason = "known", f"{why}: {outcome.reason}"
        return outcome
    outcome.externs = sorted({name for program in programs for name in program.extern_ops})
    kernels = sum(program.kernel_count for program in programs)
    outcome.status = "extern" if outcome.externs and not kernels else "pass"
    return outcome


def check_alone(
    op: Any, sample: Sample, backward: bool, backend: Callable[..., Any]
) -> tuple[str, str] | None:
    """Status and reason of one sample that does not pass."""
    try:
        check_graph(op, [sample], backward, backend)
    except Exception as error:
        status, reason = classify(error)
        return status, reason if status == "failure" else f"{reason} [{sample.text}]"
    return None


def severity(found: tuple[str, str]) -> int:
    return ("failure", "exception", "data").index(found[0])


def classify(error: BaseException) -> tuple[str, str]:
    """Status and reason of what a check raised. Names the innermost cause."""
    if isinstance(error, Mismatch):
        return "failure", str(error)
    cause = error
    while isinstance(cause, aotgrad.CompilerError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, symshapes.DataDependentError):
        return "data", str(cause).split("\n")[0]
    text = f"{type(cause).__name__}: {cause}".strip().replace("\n", " ")
    return "exception", text[:300]
