"""One operator of the database through aotgrad and a CPU back end, compared with eager by the rule of ``rule.py``.

All samples of an operator go into one graph; when that fails, each is tried alone so that the report says which one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aotgrad
import inductor_cpp
import loopir
import torch
from loopir.testing import EvaluatorCodeGenerator
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from integration_tests.rule import assert_by_rule, to_double

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float64, torch.float16, torch.int32, torch.uint8,
)}  # fmt: skip
LARGEST = 20_000

# Their values are random, or whatever memory holds: only sizes, strides and dtype can be compared.
VALUES_UNDEFINED = {
    "bernoulli", "cauchy", "empty", "empty_like", "empty_permuted", "empty_strided", "exponential", "geometric", "log_normal",
    "multinomial", "new_empty", "new_empty_strided", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d", "normal", "pca_lowrank", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "svd_lowrank", "uniform",
}  # fmt: skip


@dataclass
class Outcome:
    """What became of one operator in one dtype.

    ``status``: ``pass``, ``extern`` (right, but no kernel of ours took part), ``exception`` (compiling raised),
    ``failure`` (wrong result, or the compiled call raised), ``skip`` (no sample).
    """

    op: str
    dtype: str
    status: str
    reason: str = ""
    samples: int = 0
    externs: list[str] = field(default_factory=list)


class Mismatch(Exception):
    """A compiled result that the rule does not allow, or a compiled call that raised where eager does not."""


@dataclass
class Sample:
    """A call of the operator as a function of tensors."""

    call: Callable[..., tuple[torch.Tensor, ...]]
    tensors: list[torch.Tensor]
    text: str


def operators(names: Sequence[str] = ()) -> list[Any]:
    """Entries of the database in order, all or those of the given full names."""
    return [op for op in op_db if not names or full_name(op) in names]


def full_name(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples_of(op: Any, dtype: torch.dtype, count: int) -> list[Sample]:
    """Small samples, spread over those that the operator has, on which eager works."""
    found: list[Sample] = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        made = as_sample(op, sample)
        if sum(t.numel() for t in made.tensors) <= LARGEST and eager_works(made):
            found.append(made)
        if len(found) >= 40:
            break
    step = max(1, len(found) / count)
    return [found[int(i * step)] for i in range(min(count, len(found)))]


def as_sample(op: Any, sample: Any) -> Sample:
    """The sample's tensors as arguments; everything else stays in the closure. Results are flattened to tensors."""
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        if torch.float64 in {t.dtype for t in tensors} and kwargs.get("dtype") in (torch.float32, torch.bfloat16):
            kwargs["dtype"] = torch.float64
        result = op.op(first, *args, **kwargs)
        return tuple(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))

    return Sample(call, [leaves[i] for i in places], describe((sample.input, sample.args, sample.kwargs)))


def describe(value: Any) -> str:
    """Arguments in short: tensors as dtype and sizes."""

    def short(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        strides = "" if leaf.is_contiguous() or leaf.layout is not torch.strided else f"/{list(leaf.stride())}"
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"

    return str(pytree.tree_map(short, value))[:300]


def eager_works(sample: Sample) -> bool:
    try:
        results = sample.call(*map(replica, sample.tensors))
    except Exception:
        return False
    return bool(results) and all(r.layout is torch.strided for r in (*results, *sample.tensors))


def replica(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides and offset, also of overlapping memory."""
    storage = tensor.detach().untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return copy.conj() if tensor.is_conj() else copy


def back_end(generator: str, store: loopir.ArtifactStore, programs: list[loopir.HostProgram]) -> Callable[..., Any]:
    """``aot_backend`` over the named code generator (``evaluator`` or ``cpp``); remembers the programs that it makes."""
    codegen = EvaluatorCodeGenerator() if generator == "evaluator" else inductor_cpp.CppCodeGenerator()

    def compiler(gm: torch.fx.GraphModule, examples: Sequence[object]) -> loopir.HostProgram:
        program = loopir.compile_graph(gm, examples, codegens={"cpu": codegen}, store=store, options=loopir.Options(check=True))
        programs.append(program)
        return program

    return aotgrad.aot_backend(compiler)


def graph_of(samples: Sequence[Sample]) -> torch.fx.GraphModule:
    """All samples' calls in one graph, with the tensors of the first sample as the first placeholders."""
    graph = torch.fx.Graph()
    calls = []
    for number, sample in enumerate(samples):
        inputs = [graph.placeholder(f"x{number}_{i}") for i in range(len(sample.tensors))]
        calls.append(graph.call_function(sample.call, tuple(inputs)))
    graph.output(tuple(calls))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def differentiable(op: Any, dtype: torch.dtype) -> bool:
    return dtype is torch.float32 and op.supports_autograd and op.supports_dtype(dtype, "cpu")


def leaves_of(sample: Sample, backward: bool) -> list[torch.Tensor]:
    return [replica(t).requires_grad_(backward and t.dtype.is_floating_point) for t in sample.tensors]


def gradients(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of a weighted sum of all results; the weights are the same in every precision."""
    outputs = [r for r in results if r.requires_grad and r.dtype.is_floating_point]
    sources = [x for x in inputs if x.requires_grad]
    if not outputs or not sources:
        return []
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=torch.float64).reshape(r.shape).to(r.dtype) for r in outputs]
    return list(torch.autograd.grad(outputs, sources, weights, allow_unused=True))


def reference(sample: Sample, inputs: list[torch.Tensor], backward: bool) -> tuple[list[torch.Tensor], list[Any]]:
    """Results and gradients of eager."""
    results = sample.call(*inputs)
    return [r.detach() for r in results], gradients(results, inputs) if backward else []


def exact_of(sample: Sample, backward: bool, eager: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """Eager in float64; eager itself where the operator refuses that or where nothing is gained."""
    if not any(t.dtype.is_floating_point for t in sample.tensors):
        return eager
    try:
        exact = reference(sample, to_double(leaves_of(sample, backward)), backward)
    except Exception:
        return eager
    same = [len(a) == len(b) for a, b in zip(exact, eager)]
    return exact if all(same) else eager


def compare(sample: Sample, got: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any], what: str, values: bool) -> None:
    if len(got) != len(eager):
        raise Mismatch(f"{len(got)} {what}s, eager {len(eager)} of {sample.text}")
    for i, (a, b, c) in enumerate(zip(got, eager, exact)):
        if (a is None) != (b is None):
            raise Mismatch(f"{what} {i} is None in one of both, of {sample.text}")
        if a is None:
            continue
        try:
            compare_tensors(a.detach(), b, b if c is None else c, f"{what} {i}", values)
        except AssertionError as error:
            raise Mismatch(f"{error} of {sample.text}") from None


def compare_tensors(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, what: str, values: bool) -> None:
    """The rule; nan and infinities must be where eager has them."""
    if not values:
        got, exact = got.clone(), eager
        got.copy_(eager)
    if eager.dtype.is_complex:
        got, eager, exact = (torch.view_as_real(x.resolve_conj()) for x in (got, eager, exact.to(torch.complex128)))
    if eager.dtype.is_floating_point:
        assert torch.equal(got.isnan(), eager.isnan()), f"{what}: nan elsewhere"
        infinite = eager.isinf()
        assert torch.equal(got[infinite], eager[infinite]), f"{what}: other infinities"
    assert_by_rule(got, eager, exact, what)


def check_graph(op: Any, samples: Sequence[Sample], backward: bool, compile_backend: Callable[..., Any]) -> None:
    """Raises Mismatch, or what compiling raises."""
    inputs = [leaves_of(sample, backward) for sample in samples]
    flat = [t for group in inputs for t in group]
    compiled = compile_backend(graph_of(samples), flat)
    values = full_name(op) not in VALUES_UNDEFINED
    try:
        outputs = list(compiled(*flat))
    except Exception as error:
        raise Mismatch(f"the compiled call raised {type(error).__name__}: {error}") from error
    got_gradients = run_backward(outputs, flat) if backward else []
    taken = taken_gradients = 0
    for sample in samples:
        eager = reference(sample, leaves_of(sample, backward), backward)
        exact = exact_of(sample, backward, eager)
        got = outputs[taken : taken + len(eager[0])]
        taken += len(eager[0])
        compare(sample, got, eager[0], exact[0], "result", values)
        if backward and eager[1]:
            own = sum(t.dtype.is_floating_point for t in sample.tensors)
            part = got_gradients[taken_gradients : taken_gradients + own]
            compare(sample, part, eager[1], exact[1], "gradient", values)
        taken_gradients += sum(t.dtype.is_floating_point for t in sample.tensors) if backward else 0


def run_backward(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    try:
        return gradients(outputs, inputs)
    except Exception as error:
        raise Mismatch(f"the compiled backward raised {type(error).__name__}: {error}") from error


def has_gradients(samples: Sequence[Sample]) -> bool:
    """Whether eager can differentiate all samples."""
    try:
        return any(reference(s, leaves_of(s, True), True)[1] for s in samples)
    except Exception:
        return False


def attempts(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Each sample alone."""
    for sample in samples:
        yield [sample]


def check_operator(op: Any, dtype: torch.dtype, generator: str, store: loopir.ArtifactStore, count: int = 4) -> Outcome:
    """One operator: forward, and backward in float32 where eager has one."""
    outcome = Outcome(full_name(op), str(dtype).removeprefix("torch."), "skip")
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    if not op.supports_dtype(dtype, "cpu"):
        outcome.reason = "dtype not supported by eager"
        return outcome
    samples = samples_of(op, dtype, count)
    outcome.samples = len(samples)
    if not samples:
        outcome.reason = "no small sample that eager runs"
        return outcome
    backward = differentiable(op, dtype) and has_gradients(samples)
    programs: list[loopir.HostProgram] = []
    backend = back_end(generator, store, programs)
    try:
        check_graph(op, samples, backward, backend)
    except Exception as error:
        outcome.status, outcome.reason = classify(error)
        for alone in attempts(samples):
            try:
                check_graph(op, alone, backward, backend)
            except Exception as alone_error:
                status, reason = classify(alone_error)
                if outcome.status != "failure" or status == "failure":
                    outcome.status, outcome.reason = status, reason if status == "failure" else f"{reason} [{alone[0].text}]"
        return outcome
    outcome.externs = sorted({name for program in programs for name in program.extern_ops})
    kernels = sum(program.kernel_count for program in programs)
    outcome.status = "extern" if outcome.externs and not kernels else "pass"
    return outcome


def classify(error: BaseException) -> tuple[str, str]:
    """Status and reason of what a check raised. Names the innermost cause."""
    if isinstance(error, Mismatch):
        return "failure", str(error)
    cause = error
    while isinstance(cause, aotgrad.CompilerError) and cause.__cause__ is not None:
        cause = cause.__cause__
    text = f"{type(cause).__name__}: {cause}".strip().replace("\n", " ")
    return "exception", text[:500]
