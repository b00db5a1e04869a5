"""The backward kernels: the scores are computed again from the saved sums, once by tiles of keys
for the gradients of key and value, and once by tiles of queries for that of query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from loopir import FloorDiv, KernelSource, symbol

from inductor_triton.spec import Config

from .configurations import KEYS, QUERIES, configuration
from .function_writer import M, N, FunctionWriter
from .problem import Problem
from .running import Call, Kernels, with_dense_rows
from .tile_writer import DK, DQ, DV, GRAD, KEY, LOG2E, OUT, QUERY, VALUE, TileWriter

DELTA = Config(x=16, y=64, num_warps=4)


class _Delta(TileWriter):
    """Sums of the products of the result and its gradient, less the gradient of the saved sums."""

    name = "attention_delta"
    order = M + N
    operands = (OUT, GRAD)
    written = ()

    def __init__(self, problem: Problem, config: Config, with_sums: bool) -> None:
        self.with_sums = with_sums
        sums = (("grad_sums", "in"),) if with_sums else ()
        self.vectors = (*sums, ("delta", "out"))
        super().__init__(problem, config)

    def write(self) -> KernelSource:
        self.start("heads")
        for item in self.operands:
            self.base(item)
        self.line(f"acc = {self.load(OUT)}.to(tl.float32) * {self.load(GRAD)}.to(tl.float32)")
        self.line("total = tl.reduce(acc, 1, combine_sum)[:, None]")
        masks = [] if M in self.whole.unmasked else ["mask=mmask"]
        if self.with_sums:
            self.line(f"total -= tl.load({', '.join([self.vector('grad_sums'), *masks])})")
        self.line(f"tl.store({', '.join([self.vector('delta'), 'total', *masks])})")
        return self.source(symbol("batches") * symbol("heads"))


class _Gradient(TileWriter):
    """What both kernels do with a tile of scores."""

    vectors = (("sums", "in"), ("delta", "in"))

    def rows_of_queries(self) -> None:
        """Writes the saved numbers of the tile's queries."""
        masks = "" if M in self.whole.unmasked else ", mask=mmask, other=float('inf')"
        self.line(f"sums_row = tl.load({self.vector('sums')}{masks}) * {LOG2E!r}")
        # nothing is visible to such a query, so its weights are 0
        self.line("sums_row = tl.where(sums_row == -float('inf'), float('inf'), sums_row)")
        masks = "" if M in self.whole.unmasked else ", mask=mmask, other=0.0"
        self.line(f"delta_row = tl.load({self.vector('delta')}{masks})")

    def weights(self, functions: dict[str, FunctionWriter], partial: bool) -> str | None:
        """Writes ``weights`` from ``products``; returns the mask's text."""
        # keys beyond the end are zero, and gradients of them are not stored
        hides = [] if N in self.whole.unmasked or self.inner == M else ["nmask"]
        term = self.logits(functions, partial, hides)
        self.line(f"weights = tl.exp2(logits * {self.factor!r} - sums_row)")
        return term.text if term is not None else None

    def slope(self, functions: dict[str, FunctionWriter], visible: str | None) -> None:
        """Writes ``slope``, the gradient of the scaled products, from that of the weights."""
        self.line("slope = weights * (slope - delta_row)")
        if "score_gradient" in functions:
            if "score" not in functions:
                self.line(f"score = products * {self.problem.scale!r}")
            terms = {"grad": self.tile_term("slope"), "score": self.tile_term("score")}
            found = functions["score_gradient"].in_loop(terms)
            self.line(f"slope = {self.spread(found)}")
            if visible is not None:  # a derivative may be infinite where nothing is seen
                self.line(f"slope = tl.where({visible}, slope, 0.0)")


class _Keys(_Gradient):
    """Gradients of a tile of keys and values, from all queries that see them."""

    name = "attention_keys"
    order = N + M
    operands = (QUERY, KEY, VALUE, GRAD, DK, DV)
    written = ("dk", "dv")

    def write(self) -> KernelSource:
        self.start("(heads // groups)")
        for item in (KEY, VALUE, DK, DV):
            self.base(item)
        self.line(f"key_tile = {self.load(KEY)}")
        self.line(f"value_tile = {self.load(VALUE)}")
        self.line("dk = tl.full([NBLOCK, DBLOCK], 0.0, tl.float32)")
        self.line("dv = tl.full([NBLOCK, EBLOCK], 0.0, tl.float32)")
        if self.problem.is_grouped:
            self.line("for group in tl.range(0, groups):")
            self.whole.indent += 1
            self.line("head = kv_head * groups + group")
        else:
            self.line("head = kv_head")
        for item in (QUERY, GRAD):
            self.base(item)
            self.describe(item)
        functions = self.functions("score", "score_gradient", "mask")
        self.loops(lambda partial: self._tile_of_queries(functions, partial))
        self.whole.indent = 1
        self.store(DK, f"dk * {self.problem.scale!r}")
        self.store(DV, "dv")
        return self.source(symbol("batches") * FloorDiv(symbol("heads"), symbol("groups")))

    def _tile_of_queries(self, functions: dict[str, FunctionWriter], partial: bool) -> None:
        self.rows_of_queries()
        self.line(f"query_tile = {self.load(QUERY)}")
        self.line(f"products = {self.dot('key_tile', 'tl.trans(query_tile)')}")
        visible = self.weights(functions, partial)
        self.line(f"grad_tile = {self.load(GRAD)}")
        self.line(f"dv = {self.dot(self.narrowed('weights'), 'grad_tile', 'dv')}")
        self.line(f"slope = {self.dot('value_tile', 'tl.trans(grad_tile)')}")
        self.slope(functions, visible)
        self.line(f"dk = {self.dot(self.narrowed('slope'), 'query_tile', 'dk')}")


class _Queries(_Gradient):
    """The gradient of a tile of queries, from all keys that they see."""

    name = "attention_queries"
    order = M + N
    operands = (QUERY, KEY, VALUE, GRAD, DQ)
    written = ("dq",)

    def write(self) -> KernelSource:
        self.start("heads")
        for item in self.operands:
            self.base(item)
        self.line(f"query_tile = {self.load(QUERY)}")
        self.line(f"grad_tile = {self.load(GRAD)}")
        for item in (KEY, VALUE):
            self.describe(item)
        self.rows_of_queries()
        self.line("dq = tl.full([MBLOCK, DBLOCK], 0.0, tl.float32)")
        functions = self.functions("score", "score_gradient", "mask")
        self.loops(lambda partial: self._tile_of_keys(functions, partial))
        self.store(DQ, f"dq * {self.problem.scale!r}")
        return self.source(symbol("batches") * symbol("heads"))

    def _tile_of_keys(self, functions: dict[str, FunctionWriter], partial: bool) -> None:
        self.line(f"key_tile = {self.load(KEY)}")
        self.line(f"value_tile = {self.load(VALUE)}")
        self.line(f"products = {self.dot('query_tile', 'tl.trans(key_tile)')}")
        visible = self.weights(functions, partial)
        self.line(f"slope = {self.dot('grad_tile', 'tl.trans(value_tile)')}")
        self.slope(functions, visible)
        self.line(f"dq = {self.dot(self.narrowed('slope'), 'key_tile', 'dq')}")


def generate_delta(problem: Problem, with_sums: bool, config: Config) -> KernelSource:
    """The Triton source of the kernel before the other two."""
    return _Delta(problem, config, with_sums).write()


def generate_keys(problem: Problem, config: Config) -> KernelSource:
    """The Triton source of the gradients of key and value."""
    return _Keys(problem, config).write()


def generate_queries(problem: Problem, config: Config) -> KernelSource:
    """The Triton source of the gradient of query."""
    return _Queries(problem, config).write()


def gradients(
    call: Call, kernels: Kernels,
    saved: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor],
    results: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """Computes the gradients of query, key and value into ``results``. ``saved``: the gradients of
    the output and of the saved sums, the output, and the sums.
    """
    grad, grad_sums, out, sums = saved
    grad, out, sums = with_dense_rows(grad), with_dense_rows(out), sums.contiguous()
    problem, captured = call.problem, call.captured
    delta = torch.empty_like(sums)
    vectors = [] if grad_sums is None else [grad_sums.contiguous()]
    # this kernel is that of all functions and masks
    plain = replace(problem, functions="", blocks=None, has_full=False, captured=(), scale=1.0, engine=False)
    kernels.launch(
        ("delta", plain, len(vectors)), partial(generate_delta, plain, bool(vectors)), DELTA,
        [out, grad, *vectors, delta],
        replace(call, problem=plain, captured=()).sizes([out, grad], ()),
    )  # fmt: skip
    dq, dk, dv = results
    operands = (call.query, call.key, call.value, grad)
    by_key, by_query = call.blocks[call.lists :], call.blocks[: call.lists]
    steps = (
        (KEYS, generate_keys, (dk, dv), by_key),
        (QUERIES, generate_queries, (dq,), by_query),
    )
    for name, generate, written, lists in steps:
        config = configuration(name, problem)
        kernels.launch(
            (name, problem), partial(generate, problem), config,
            [*operands, *written, sums, delta, *lists, *captured],
            call.sizes([*operands, *written], lists),
        )  # fmt: skip
