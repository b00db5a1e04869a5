"""The backward kernels: the scores are computed again from the saved sums, once by tiles of queries
for the gradient of query, and once by tiles of keys for those of key and value.

The first kernel stores ``delta`` for the second: the sums of the products of the result and its
gradient, less the gradient of the saved sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from loopir import FloorDiv, KernelSource, symbol

from inductor_triton.spec import Config

from .configurations import KEYS, QUERIES, configuration
from .function_writer import FunctionWriter, M, N
from .problem import Problem
from .running import Call, Kernels, laid_out
from .tile_writer import DK, DQ, DV, GRAD, KEY, LOG2E, OUT, QUERY, VALUE, TileWriter


class _Gradient(TileWriter):
    """What both kernels do with a tile of scores."""

    def load_sums(self) -> None:
        """Writes the load of the saved sums of the tile's queries."""
        masks = "" if M in self.whole.unmasked else ", mask=mmask, other=float('inf')"
        self.line(f"sums_row = tl.load({self.vector('sums')}{masks})")

    def scale_sums(self) -> None:
        """Writes ``sums_row`` in base 2. Queries that see nothing get weights of 0."""
        hidden = "tl.where(sums_row == -float('inf'), float('inf'), sums_row)"
        self.line(f"sums_row = {hidden if self.can_hide else 'sums_row'} * {LOG2E!r}")

    def masked(self, *arguments: str, zero: bool = False) -> str:
        """Arguments of an access to one number per query."""
        mask = [] if M in self.whole.unmasked else ["mask=mmask"]
        return ", ".join([*arguments, *mask, *(["other=0.0"] if zero and mask else [])])

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
    vectors = (("sums", "in"), ("delta", "in"))
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
        self.report()
        self.whole.indent = 1
        self.store(DK, f"dk * {self.problem.scale!r}")
        self.store(DV, "dv")
        return self.source(symbol("batches") * FloorDiv(symbol("heads"), symbol("groups")))

    def _tile_of_queries(self, functions: dict[str, FunctionWriter], partial: bool) -> None:
        self.load_sums()
        delta = self.masked(self.vector("delta"), zero=True)
        self.line(f"delta_row = tl.load({delta})")
        self.line(f"query_tile = {self.load(QUERY)}")
        self.line(f"products = {self.dot('key_tile', 'tl.trans(query_tile)')}")
        self.scale_sums()  # after the product, which hides the time of the load
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
    operands = (QUERY, KEY, VALUE, GRAD, OUT, DQ)
    written = ("dq",)

    def __init__(self, problem: Problem, with_sums: bool, config: Config) -> None:
        self.with_sums = with_sums
        sums = (("grad_sums", "in"),) if with_sums else ()
        self.vectors = (("sums", "in"), ("delta", "out"), *sums)
        super().__init__(problem, config)

    def write(self) -> KernelSource:
        self.start("heads")
        for item in self.operands:
            self.base(item)
        self.line(f"query_tile = {self.load(QUERY)}")
        self.line(f"grad_tile = {self.load(GRAD)}")
        for item in (KEY, VALUE):
            self.describe(item)
        self.load_sums()
        self.scale_sums()
        self._delta()
        self.line("dq = tl.full([MBLOCK, DBLOCK], 0.0, tl.float32)")
        functions = self.functions("score", "score_gradient", "mask")
        self.loops(lambda partial: self._tile_of_keys(functions, partial))
        self.report()
        self.store(DQ, f"dq * {self.problem.scale!r}")
        return self.source(symbol("batches") * symbol("heads"))

    def _delta(self) -> None:
        products = f"{self.load(OUT)}.to(tl.float32) * grad_tile.to(tl.float32)"
        self.line(f"delta_row = tl.reduce({products}, 1, combine_sum)[:, None]")
        if self.with_sums:
            self.line(f"delta_row -= tl.load({self.masked(self.vector('grad_sums'), zero=True)})")
        self.line(f"tl.store({self.masked(self.vector('delta'), 'delta_row')})")

    def _tile_of_keys(self, functions: dict[str, FunctionWriter], partial: bool) -> None:
        self.line(f"key_tile = {self.load(KEY)}")
        self.line(f"value_tile = {self.load(VALUE)}")
        self.line(f"products = {self.dot('query_tile', 'tl.trans(key_tile)')}")
        visible = self.weights(functions, partial)
        self.line(f"slope = {self.dot('grad_tile', 'tl.trans(value_tile)')}")
        self.slope(functions, visible)
        self.line(f"dq = {self.dot(self.narrowed('slope'), 'key_tile', 'dq')}")


def generate_keys(problem: Problem, config: Config) -> KernelSource:
    """The Triton source of the gradients of key and value."""
    return _Keys(problem, config).write()


def generate_queries(problem: Problem, with_sums: bool, config: Config) -> KernelSource:
    """The Triton source of the gradient of query, and of ``delta``; ``with_sums``: the saved sums
    have a gradient.
    """
    return _Queries(problem, with_sums, config).write()


def gradients(
    call: Call, kernels: Kernels,
    saved: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor],
    results: Sequence[torch.Tensor],
) -> None:  # fmt: skip
    """Computes the gradients of query, key and value into ``results``. ``saved``: the gradients of
    the output and of the saved sums, the output, and the sums.
    """
    grad, grad_sums, out, sums = saved
    grad, out, sums = laid_out(grad), laid_out(out), sums.contiguous()
    problem, captured, delta = call.problem, call.captured, torch.empty_like(sums)
    by_query, by_key = call.blocks[: call.lists], call.blocks[call.lists :]
    dq, dk, dv = results
    operands = (call.query, call.key, call.value, grad)
    more = [] if grad_sums is None else [grad_sums.contiguous()]
    kernels.launch(
        (QUERIES, problem, len(more)), partial(generate_queries, problem, bool(more)),
        configuration(QUERIES, problem),
        [*operands, out, dq, sums, delta, *more, *by_query, *captured],
        call.sizes([*operands, out, dq], by_query),
    )  # fmt: skip
    kernels.launch(
        (KEYS, problem), partial(generate_keys, problem), configuration(KEYS, problem),
        [*operands, dk, dv, sums, delta, *by_key, *captured],
        call.sizes([*operands, dk, dv], by_key),
    )  # fmt: skip
