"""The forward kernel: a program has a tile of queries and goes over the keys once, with the
maximum and the sum of what it has seen (Milakov and Gimelshein 2018; Dao et al. 2022).
"""

from __future__ import annotations

import math

from loopir import KernelSource, symbol

from inductor_triton.spec import Config

from .function_writer import M, N
from .problem import Problem
from .tile_writer import KEY, OUT, QUERY, VALUE, TileWriter


class _Forward(TileWriter):
    name = "attention"
    order = M + N
    operands = (QUERY, KEY, VALUE, OUT)
    vectors = (("sums", "out"),)
    written = ("out",)

    def write(self) -> KernelSource:
        self.start("heads")
        for item in self.operands:
            self.base(item)
        for item in (KEY, VALUE):
            self.describe(item)
        self.line(f"query_tile = {self.load(QUERY)}")
        self.line("top = tl.full([MBLOCK], -float('inf'), tl.float32)")
        self.line("total = tl.full([MBLOCK], 0.0, tl.float32)")
        self.line("acc = tl.full([MBLOCK, EBLOCK], 0.0, tl.float32)")
        functions = self.functions("score", "mask")
        hides = [] if N in self.whole.unmasked else ["nmask"]

        def tile(partial: bool) -> None:
            self.line(f"key_tile = {self.load(KEY)}")
            self.line(f"products = {self.dot('query_tile', 'tl.trans(key_tile)')}")
            self.logits(functions, partial, hides)
            self._add_tile()

        self.loops(tile)
        self.report()
        self._finish()
        return self.source(symbol("batches") * symbol("heads"))

    def _add_tile(self) -> None:
        if self.factor <= 0:
            self.line(f"logits = logits * {self.factor!r}")
        factor = f" * {self.factor!r}" if self.factor > 0 else ""
        self.line(f"new = tl.maximum(top, tl.reduce(logits, 1, combine_max){factor})")
        # a row that has seen no key yet: -inf - -inf would be NaN
        base = "tl.where(new == -float('inf'), 0.0, new)" if self.can_hide else "new"
        self.line(f"base = {base}")
        self.line(f"weights = tl.exp2(logits{factor} - base[:, None])")
        self.line("keep = tl.exp2(top - base)")
        self.line("total = total * keep + tl.reduce(weights, 1, combine_sum)")
        self.line("acc = acc * keep[:, None]")
        self.line(f"value_tile = {self.load(VALUE)}")
        self.line(f"acc = {self.dot(self.narrowed('weights'), 'value_tile', 'acc')}")
        self.line("top = new")

    def _finish(self) -> None:
        self.line("valid = total != 0.0")
        self.line("acc = acc / tl.where(valid, total, 1.0)[:, None]")
        self.store(OUT, "acc")
        self.line(f"top = tl.where(valid, (top + tl.log2(total)) * {math.log(2)!r}, -float('inf'))")
        mask = "" if M in self.whole.unmasked else ", mask=mmask"
        self.line(f"tl.store({self.vector('sums')}, top[:, None]{mask})")


def generate_forward(problem: Problem, config: Config) -> KernelSource:
    """The Triton source of the forward kernel with tiles of ``config.y`` queries and ``config.x``
    keys; both divide the blocks of the block mask.
    """
    return _Forward(problem, config).write()
