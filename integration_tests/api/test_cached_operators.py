"""Graphs with operators of the program in the cache: found again while what compilation reads of the
operators is the same, and compiled anew when it has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torchstrata

ROOT = Path(__file__).parents[2]
DEFINED = """
library = torch.library.Library("cached", "FRAGMENT")
library.define("repeated(Tensor x, int times{schema}) -> Tensor")
library.impl("repeated", kernel, "CPU")
torch.library.register_fake("cached::repeated", fake, lib=library)
"""
CUSTOM = """
def kernel(x: torch.Tensor, times: int) -> torch.Tensor:
    return run(x, times)
made = torch.library.custom_op("cached::custom", kernel, mutates_args=())
made.register_fake(fake)
if {has_gradient}:
    made.register_autograd(backward, setup_context=setup)
"""
PROGRAM = """
import torch
FACTOR = {factor}
def run(x, times, offset=None):
    return x.repeat(times + {extra}) * {scale}
kernel = run
def length(x, times):
    return len(x) * (times + {extra})
def fake(x, times, offset=None):
    return x.new_empty({fake})
def setup(ctx, inputs, output):
    ctx.size = len(inputs[0])
def weighted(grad):
    return grad * FACTOR + {shift}
def make(power):
    def backward(ctx, grad):
        return weighted(grad).view(-1, ctx.size).sum(0) * power{nones}
    return backward
backward = make({power})
{registered}
def f(x):
    return torch.ops.cached.{name}(x, 2).sin() + 1
"""
PLAIN = {
    "factor": 2.0, "extra": 0, "scale": 1.0, "shift": 0.0, "power": 3.0, "schema": "",
    "nones": ", None", "fake": "length(x, times)", "has_gradient": True,
}  # fmt: skip
KINDS = {"custom": CUSTOM, "repeated": DEFINED}


@pytest.fixture
def program():
    """``program(kind, ...)`` is a module that registers the operator with these values."""

    def write(kind: str, **values: object) -> types.ModuleType:
        forget()
        held = {**PLAIN, "name": kind, **values}
        text = PROGRAM.replace("{registered}", KINDS[kind]).format(**held)
        module = types.ModuleType("program_with_operators")
        sys.modules[module.__name__] = module
        exec(compile(text, "program_with_operators.py", "exec"), vars(module))
        return module

    yield write
    forget()


def forget() -> None:
    """Takes back what the last program registered."""
    last = sys.modules.pop("program_with_operators", None)
    if hasattr(last, "library"):
        last.library._destroy()


@pytest.fixture
def step(tmp_path):
    """The hits, the misses and the kept frames of a first call, which is compared with eager."""

    def run(f, x, **options):
        torchstrata.reset()
        before = dict(torchstrata.counters)
        settings = {"verify": False, "cache_dir": str(tmp_path), "fallback": "error", **options}
        found, expected = torchstrata.compile(f, options=settings)(x), f(x)
        torch.testing.assert_close(found, expected)
        if expected.requires_grad:
            gradients = [torch.autograd.grad(y.square().sum(), x) for y in (found, expected)]
            torch.testing.assert_close(*gradients)
        names = ("cache_hits", "cache_misses", "kept_frames")
        return tuple(torchstrata.counters[name] - before[name] for name in names)

    return run


def leaf(has_gradient: object = True) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, requires_grad=bool(has_gradient))


@pytest.mark.parametrize("keep_frames", [True, False])
@pytest.mark.parametrize(
    ("kind", "has_gradient"), [("custom", True), ("custom", False), ("repeated", False)]
)
def test_the_same_operator_is_found_again(kind, has_gradient, keep_frames, program, step):
    for again in (False, True):
        f = program(kind, has_gradient=has_gradient).f
        hits, misses, frames = step(f, leaf(has_gradient), keep_frames=keep_frames)
        assert (hits > 0 and misses == 0) is again
        assert frames == (again and keep_frames)


CHANGES = {
    "the helper of the fake kernel": {"extra": 1},
    "the fake kernel": {"fake": "len(x) * times"},
    "the helper of the formula": {"shift": 1.0},
    "a constant that the formula reads": {"factor": 5.0},
    "a value in the closure of the formula": {"power": 7.0},
    "whether there is a formula": {"has_gradient": False},
}


@pytest.mark.parametrize("keep_frames", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_operator_is_compiled_anew(change, keep_frames, program, step):
    changed = CHANGES[change]
    step(program("custom").f, leaf(), keep_frames=keep_frames)
    f = program("custom", **changed).f
    _, misses, frames = step(f, leaf(changed.get("has_gradient", True)), keep_frames=keep_frames)
    assert misses > 0 and frames == 0


def test_a_changed_operator_of_a_library_is_compiled_anew(program, step):
    step(program("repeated").f, leaf(False))
    for changed in ({"extra": 1}, {"schema": ", Tensor? offset=None"}):
        assert step(program("repeated", **changed).f, leaf(False))[1] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_of_a_device_may_change(kind, program, step):
    x = leaf(kind == "custom")
    step(program(kind).f, x)
    hits, misses, frames = step(program(kind, scale=4.0).f, x)
    assert hits > 0 and misses == 0 and frames == 1


WRITTEN = """
import torch, torchstrata, sys
@torch.library.custom_op("cached::filled", mutates_args=("out",))
def filled(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 4)
@torch.library.custom_op("cached::weighted", mutates_args=())
def weighted(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return x * weights.sum()
@weighted.register_fake
def _(x, weights):
    return torch.empty_like(x)
def backward(ctx, grad):  # it reads numbers, and runs as one operator
    return grad * sum(ctx.saved_tensors[0].tolist()), None
weighted.register_autograd(
    backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1])
)
def f(x, weights):
    out = torch.zeros(3)
    filled(x.detach(), out)
    return weighted(x, weights).sin() + out
def unmade(name, bases):
    pass
if "unmade" in sys.argv:
    import aotgrad
    aotgrad.make_operator = unmade
x, weights = torch.randn(3, requires_grad=True), torch.arange(3)
call = torchstrata.compile(f, options={"verify": False, "fallback": "error"})
found, expected = call(x, weights), f(x, weights)
torch.testing.assert_close(found, expected)
gradients = [torch.autograd.grad(y.sum(), x) for y in (found, expected)]
torch.testing.assert_close(*gradients)
print(torchstrata.counters["kept_frames"], torchstrata.counters["cache_misses"])
"""


def test_operators_that_traces_define_are_defined_again_elsewhere(tmp_path):
    def run(folder: str, *arguments: str) -> tuple[int, ...]:
        path = tmp_path / folder / "program.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(WRITTEN)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(path), *arguments],
            env=os.environ | {"STRATA_CACHE_DIR": str(tmp_path / "cache")},
            check=True, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        return tuple(map(int, done.stdout.split()))

    assert run("first")[0] == 0
    assert run("second") == (1, 0)
    assert run("second", "unmade")[0] == 0
