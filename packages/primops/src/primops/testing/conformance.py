"""A conformance kit for decompositions: calls of each operator of a table, decomposed, verified and
evaluated, against eager mode.

The calls are those that torch's operator database makes of its own operators and their gradients,
and, of operators whose tensors share a size, calls with other sizes, strides and dtypes.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from symshapes.testing.report import Refused, Report
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from primops.evaluate import evaluate
from primops.passes import decompose
from primops.registry import DecompositionTable
from primops.testing.oracle import assert_matches
from primops.testing.trace import tensors_in, trace
from primops.verify import check_prims

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SIZES = ((), (1,), (0, 3), (5,), (2, 3), (3, 1, 4))
LARGEST, CALLS_OF_ONE, SAMPLES_OF_ONE = 5_000, 6, 20
VALUES_UNDEFINED = ("aten::empty", "aten::new_empty")


class Recorder(TorchDispatchMode):
    """Keeps calls of the table's operators: at most ``CALLS_OF_ONE`` of each in a dtype."""

    def __init__(self, table: DecompositionTable) -> None:
        """Keeps calls of the operators that ``table`` decomposes."""
        super().__init__()
        self.table = table
        self.calls: dict[str, list[Call]] = {}
        self.counts: Counter[tuple[str, torch.dtype]] = Counter()
        self.dtype = torch.float32

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = (func.name(), self.dtype)
        if func in self.table and self.counts[key] < CALLS_OF_ONE and not func._schema.is_mutable:
            call = Call(func, args, kwargs)
            if call.is_small:
                self.counts[key] += 1
                self.calls.setdefault(func.name(), []).append(call)
        return func(*args, **kwargs)


class Call:
    """One call of an operator as a function of its tensors."""

    def __init__(self, op: OpOverload, args: Any, kwargs: Any) -> None:
        """Copies the tensors, for a later call may write to them."""
        self.op = op
        leaves, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.is_small = all(
            leaves[i].layout is torch.strided and leaves[i].numel() <= LARGEST for i in self.places
        )
        self.tensors = [_copy(leaves[i]) for i in self.places] if self.is_small else []
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors among the results."""
        filled = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return tuple(tensors_in(self.op(*args, **kwargs)))

    def like(self, tensors: list[torch.Tensor]) -> Call:
        """The same call of other tensors."""
        other = Call.__new__(Call)
        other.op, other.leaves, other.spec, other.places = (
            self.op,
            self.leaves,
            self.spec,
            self.places,
        )
        other.tensors, other.is_small = tensors, True
        return other

    def __str__(self) -> str:
        given = ", ".join(
            f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.tensors
        )
        others = [leaf for leaf in self.leaves if leaf is not None]
        return f"{self.op.name()}({given}{f'; {others}' if others else ''})"


def check_decompositions(
    table: DecompositionTable, *, programs: int = 0, strict: bool = True
) -> Report:
    """Calls of each operator of a table of decompositions, as graphs of prims, against eager mode:
    sizes, dtypes, strides and values by the rule of ``assert_matches``.

    Args:
        table: what is checked.
        programs: calls with random sizes, strides and dtypes to run besides the fixed ones.
        strict: raise AssertionError with the failures, if there are any.
    """
    report = Report("decompositions", f"a table of {len(table)} operators", "calls")
    calls = sample_calls(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in table:
            for call in calls.get(name, ()):
                with report.case(_area(call), str(call)):
                    check_call(call, table)
            if name not in calls:
                with report.case("without calls", name):
                    raise Refused(f"torch's operator database makes no call of {name}")
        for call in random_calls(calls, programs):
            with report.case("random calls", str(call)):
                check_call(call, table)
    if strict:
        report.raise_if_wrong()
    return report


def check_call(call: Call, table: DecompositionTable) -> None:
    """Raises when the decomposed call gives something else than eager mode."""
    is_random = torch.Tag.nondeterministic_seeded in call.op.tags
    expected = call(*map(_copy, call.tensors))
    gm = trace(call, *map(_copy, call.tensors))
    prims = decompose(gm, table)
    check_prims(prims)
    (output,) = prims.graph.find_nodes(op="output")
    found = evaluate(prims, list(map(_copy, call.tensors)))
    exact = _in_double(call)
    has_values = not is_random and not call.op.name().startswith(VALUES_UNDEFINED)
    metas = output.meta["val"]
    for i, (actual, wanted, meta) in enumerate(zip(found, expected, metas, strict=True)):
        where = f"result {i}"
        assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype), (
            f"{where}: {actual.dtype}{list(actual.shape)}, eager {wanted.dtype}{list(wanted.shape)}"
        )
        assert tuple(meta.stride()) == wanted.stride(), (
            f"{where}: strides {tuple(meta.stride())}, eager {wanted.stride()}"
        )
        if has_values and not wanted.is_complex():
            judge = exact[i] if exact and exact[i].shape == wanted.shape else None
            least = _rounding(call.tensors, wanted.dtype)
            assert_matches(actual, wanted, judge, where=where, eager_error=least)


def sample_calls(table: DecompositionTable) -> dict[str, list[Call]]:
    """Calls of the table's operators in the operator database, by full name."""
    wanted = {name.partition("::")[2].partition(".")[0] for name in table}
    recorder = Recorder(table)
    for op in _database():
        names = {op.name.rpartition(".")[2], op.aten_name}
        if not any(w == n or w.startswith(f"{n}_") or f"_{n}" in w for w in wanted for n in names):
            continue
        for dtype in DTYPES:
            if op.supports_dtype(dtype, "cpu"):
                recorder.dtype = dtype
                _run_samples(op, dtype, recorder)
    return recorder.calls


def _run_samples(op: Any, dtype: torch.dtype, recorder: Recorder) -> None:
    torch.manual_seed(0)
    backward = op.supports_autograd and dtype.is_floating_point
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=backward)):
            if count == SAMPLES_OF_ONE:
                return
            try:
                with recorder:
                    results = tensors_in(op.op(sample.input, *sample.args, **sample.kwargs))
                    outputs = [r.sum() for r in results if r.requires_grad]
                    if outputs:
                        torch.autograd.backward(outputs)
            except Exception:  # eager refuses the sample, whatever its reason
                continue


def random_calls(calls: dict[str, list[Call]], count: int) -> Iterator[Call]:
    """Known calls whose tensors share a size, with other sizes, strides and dtypes that eager
    runs.
    """
    known = [
        call
        for found in calls.values()
        for call in found
        if call.tensors and len({(t.shape, t.dtype) for t in call.tensors}) == 1
    ]
    draw = random.Random(0)
    for _ in range(count if known else 0):
        call, size, dtype = draw.choice(known), draw.choice(SIZES), draw.choice(DTYPES)
        generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        order = draw.sample(range(len(size)), len(size))
        tensors = [
            torch.randn([size[d] for d in order], generator=generator)
            .mul(3)
            .to(dtype)
            .permute(sorted(range(len(size)), key=order.__getitem__))
            for _ in call.tensors
        ]
        drawn = call.like(tensors)
        try:
            drawn(*map(_copy, tensors))
        except Exception:  # eager refuses these sizes or this dtype
            continue
        yield drawn


def _area(call: Call) -> str:
    return str(call.tensors[0].dtype).removeprefix("torch.") if call.tensors else "no tensors"


def _rounding(operands: list[torch.Tensor], dtype: torch.dtype) -> float:
    """Half a unit in the last place of the largest operand: what terms that cancel leave."""
    if not dtype.is_floating_point:
        return 0.0
    finite = [t[t.isfinite()].abs() for t in operands if t.is_floating_point()]
    largest = max((t.max().item() for t in finite if t.numel()), default=0.0)
    return largest * torch.finfo(dtype).eps / 2


def _in_double(call: Call) -> tuple[torch.Tensor, ...] | None:
    wide = [t.double() if t.is_floating_point() else t for t in call.tensors]
    try:
        return call(*wide)
    except Exception:  # the operator has no such reading
        return None


def _copy(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    copy = torch.empty(0, dtype=t.dtype).set_(
        t.untyped_storage().clone(), t.storage_offset(), t.size(), t.stride()
    )
    return copy.conj() if t.is_conj() else copy


@cache
def _database() -> list[Any]:
    """torch's module wants a test library as a base class that nothing here uses."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    for name in ("common_utils", "opinfo.core"):  # else each sample looks for a unittest
        module: Any = importlib.import_module(f"torch.testing._internal.{name}")
        module.extract_test_fn = lambda: None
    return importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
