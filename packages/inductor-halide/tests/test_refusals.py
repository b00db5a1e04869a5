"""What the generator refuses, and how it says so; nothing here needs Halide."""

from __future__ import annotations

import sys

import pytest
from inductor_halide import HalideCodeGenerator
from loopir import ToolError, UnsupportedKernelError, parse_kernel

HEAD = "@kernel(device='cpu', vector='x0')\ndef k"
LGAMMA = f"""{HEAD}(in0: In('float32', 9), out0: Out('float32', 9)):
    for x0 in range(9):
        v0 = load(in0, [x0], 'float32')
        v1 = lgamma(v0)
        store(out0, [x0], v1)
"""
ERF = LGAMMA.replace("lgamma", "erf").replace("float32", "float64")
LOG1P = ERF.replace("erf", "log1p")
LOG2 = LGAMMA.replace("lgamma", "log2")
REMAINDER = LGAMMA.replace("lgamma(v0)", "remainder(v0, v0)")
LARGE = LGAMMA.replace("lgamma", "exp").replace("9", str(3 << 30))
TWICE = f"""{HEAD}(in0: In('float32', 9*5), out0: Out('float32', 9)):
    for x0 in range(9):
        for r0 in reduce(5):
            v0 = load(in0, [5*x0 + r0], 'float32')
            store(out0, [x0], v0)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LGAMMA, "k: no lgamma of float32"),
        (ERF, "k: no erf of float64"),
        (LOG1P, "k: no log1p of float64"),
        (LOG2, "k: no log2 of float32"),
        (REMAINDER, "k: no remainder of float32"),
        (LARGE, "31 bits"),
        (TWICE, "points of a loop store to one place of out0"),
    ],
)
def test_refused_by_name(text, reason):
    generator, kernel = HalideCodeGenerator(), parse_kernel(text)
    assert not generator.supports(kernel)
    with pytest.raises(UnsupportedKernelError, match=reason):
        generator.generate(kernel)


def test_text_is_deterministic():
    kernel = parse_kernel(LGAMMA.replace("lgamma", "exp"))
    assert HalideCodeGenerator().supports(kernel)
    assert HalideCodeGenerator().generate(kernel) == HalideCodeGenerator().generate(kernel)


def test_schedule_is_one_of_those_known():
    with pytest.raises(ValueError, match="simple, Mullapudi2016, Li2018"):
        HalideCodeGenerator("Adams2019")


def test_halide_is_missing(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("inductor_halide.")]:
        if not name.endswith(("generator", "plan")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "halide", None)
    generator = HalideCodeGenerator()
    source = generator.generate(parse_kernel(LGAMMA.replace("lgamma", "exp")))
    with pytest.raises(ToolError, match="pip install 'halide"):
        generator.build([source], None)  # type: ignore[arg-type]
