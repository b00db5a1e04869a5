"""Times generated kernels against eager on one thread: python benchmarks/kernels.py [name ...]
[--isa avx2]. Prints a table.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from inductor_cpp import CppCodeGenerator, find_toolchain
from inductor_cpp.building.toolchain import detect_features
from loopir import ArtifactStore, parse_kernel

R, C = 512, 1024


def pointwise(name: str, body: str, inputs: str = "in0: In('{d}', 524288)") -> str:
    return f"""
@kernel(device='cpu', vector='p0')
def {name}({inputs}, out0: Out('{{d}}', 524288)):
    for p0 in range(524288):
        a = load(in0, [p0], '{{d}}')
        x = cast(a, 'float32')
{body}
        o = cast(y, '{{d}}')
        store(out0, [p0], o)
"""


CHAIN = pointwise(
    "chain",
    """
        s = sin(x)
        c = cos(x)
        m = mul(s, c)
        e = exp(m)
        h = constant(0.5, 'float32')
        k = constant(0.7071067811865476, 'float32')
        one = constant(1.0, 'float32')
        g0 = mul(e, k)
        g1 = erf(g0)
        g2 = add(g1, one)
        g3 = mul(e, h)
        g = mul(g3, g2)
        t = tanh(g)
        n = neg(t)
        q = exp(n)
        r = add(q, one)
        y = div(one, r)""",
)
GELU = pointwise(
    "gelu",
    """
        h = constant(0.5, 'float32')
        k = constant(0.7071067811865476, 'float32')
        one = constant(1.0, 'float32')
        g0 = mul(x, k)
        g1 = erf(g0)
        g2 = add(g1, one)
        g3 = mul(x, h)
        y = mul(g3, g2)""",
)
SOFTMAX = """
@kernel(device='cpu', vector='r0')
def softmax(in0: In('{d}', 524288), out0: Out('{d}', 524288)):
    for p0 in range(512):
        for r0 in reduce(1024):
            a = load(in0, [1024*p0 + r0], '{d}')
            b = cast(a, 'float32')
            m = reduce('max', b, 'float32')
        for r0 in reduce(1024):
            a1 = load(in0, [1024*p0 + r0], '{d}')
            b1 = cast(a1, 'float32')
            c1 = sub(b1, m)
            e1 = exp(c1)
            s = reduce('sum', e1, 'float32')
        for r0 in reduce(1024):
            a2 = load(in0, [1024*p0 + r0], '{d}')
            b2 = cast(a2, 'float32')
            c2 = sub(b2, m)
            e2 = exp(c2)
            y = div(e2, s)
            o = cast(y, '{d}')
            store(out0, [1024*p0 + r0], o)
"""
LAYERNORM = """
@kernel(device='cpu', vector='r0')
def layernorm(in0: In('{d}', 524288), in1: In('{d}', 1024), in2: In('{d}', 1024), out0: Out('{d}', 524288)):
    for p0 in range(512):
        for r0 in reduce(1024):
            a = load(in0, [1024*p0 + r0], '{d}')
            b = cast(a, 'float32')
            t = reduce('sum', b, 'float32')
        n = constant(1024.0, 'float32')
        m = div(t, n)
        for r0 in reduce(1024):
            a1 = load(in0, [1024*p0 + r0], '{d}')
            b1 = cast(a1, 'float32')
            c1 = sub(b1, m)
            d1 = mul(c1, c1)
            v = reduce('sum', d1, 'float32')
        w = div(v, n)
        eps = constant(1e-05, 'float32')
        z = add(w, eps)
        q = rsqrt(z)
        for r0 in reduce(1024):
            a2 = load(in0, [1024*p0 + r0], '{d}')
            b2 = cast(a2, 'float32')
            c2 = sub(b2, m)
            e2 = mul(c2, q)
            g0 = load(in1, [r0], '{d}')
            g = cast(g0, 'float32')
            h0 = load(in2, [r0], '{d}')
            h = cast(h0, 'float32')
            f2 = mul(e2, g)
            y = add(f2, h)
            o = cast(y, '{d}')
            store(out0, [1024*p0 + r0], o)
"""
COLUMN_SUM = """
@kernel(device='cpu', vector='p0')
def column_sum(in0: In('{d}', 524288), out0: Out('{d}', 1024)):
    for p0 in range(1024):
        for r0 in reduce(512):
            a = load(in0, [1024*r0 + p0], '{d}')
            b = cast(a, 'float32')
            t = reduce('sum', b, 'float32')
        o = cast(t, '{d}')
        store(out0, [p0], o)
"""
ROW_SUM = (
    COLUMN_SUM.replace("vector='p0'", "vector='r0'")
    .replace("column_sum", "row_sum")
    .replace("range(1024)", "range(512)")
    .replace("reduce(512)", "reduce(1024)")
    .replace("1024*r0 + p0", "1024*p0 + r0")
    .replace("'{d}', 1024)", "'{d}', 512)")
)
TRANSPOSE_ADD = """
@kernel(device='cpu', vector='p1')
def transpose_add(in0: In('{d}', 1048576), in1: In('{d}', 1048576), out0: Out('{d}', 1048576)):
    for p0 in range(1024):
        for p1 in range(1024):
            a0 = load(in0, [1024*p0 + p1], '{d}')
            a = cast(a0, 'float32')
            b0 = load(in1, [p0 + 1024*p1], '{d}')
            b = cast(b0, 'float32')
            y = add(a, b)
            o = cast(y, '{d}')
            store(out0, [1024*p0 + p1], o)
"""
CUMSUM = """
@kernel(device='cpu', vector='r0')
def cumsum(in0: In('{d}', 524288), out0: Out('{d}', 524288)):
    for p0 in range(512):
        for r0 in reduce(1024):
            a = load(in0, [1024*p0 + r0], '{d}')
            b = cast(a, 'float32')
            y = scan('sum', b)
            o = cast(y, '{d}')
            store(out0, [1024*p0 + r0], o)
"""
DROPOUT = pointwise(
    "bias_gelu_dropout",
    """
        b0 = load(in1, [p0 % 1024], '{d}')
        b = cast(b0, 'float32')
        xb = add(x, b)
        h = constant(0.5, 'float32')
        k = constant(0.7071067811865476, 'float32')
        one = constant(1.0, 'float32')
        g0 = mul(xb, k)
        g1 = erf(g0)
        g2 = add(g1, one)
        g3 = mul(xb, h)
        g = mul(g3, g2)
        seed = load(in2, [0], 'int64')
        n = index_expr(p0, 'int64')
        u = uniform(seed, n)
        p = constant(0.1, 'float32')
        z = constant(0.0, 'float32')
        sc = constant(1.1111112, 'float32')
        keep = le(p, u)
        gs = mul(g, sc)
        y = where(keep, gs, z)""",
    "in0: In('{d}', 524288), in1: In('{d}', 1024), in2: In('int64', 1)",
)
DROPOUT_2D = (
    DROPOUT.replace(
        "for p0 in range(524288):", "for p1 in range(512):\n        for p0 in range(1024):"
    )
    .replace("[p0 % 1024]", "[p0]")
    .replace("[p0]", "[p0]")
    .replace("in0, [p0]", "in0, [1024*p1 + p0]")
    .replace("out0, [p0]", "out0, [1024*p1 + p0]")
    .replace("index_expr(p0", "index_expr(1024*p1 + p0")
    .replace("\n        ", "\n            ")
    .replace("            for p0", "        for p0")
)
EMBEDDING_BAG = """
@kernel(device='cpu', vector='p1')
def embedding_bag(in0: In('{d}', 640000), in1: In('int64', 5120), out0: Out('{d}', 32768)):
    for p0 in range(512):
        for p1 in range(64):
            for r0 in reduce(10):
                i = load(in1, [10*p0 + r0], 'int64')
                t = indirect(i, 10000)
                a = load(in0, [64*t + p1], '{d}')
                b = cast(a, 'float32')
                s = reduce('sum', b, 'float32')
            o = cast(s, '{d}')
            store(out0, [64*p0 + p1], o)
"""
ADD = pointwise(
    "add",
    """
        y = add(x, x)""",
)


def make_cases(
    dtype: torch.dtype,
) -> dict[str, tuple[str, list[torch.Tensor], torch.Tensor, Callable[..., torch.Tensor]]]:
    """name -> (kernel text, inputs, output, eager function)."""
    x, w, b = torch.randn(R, C).to(dtype), torch.randn(C).to(dtype), torch.randn(C).to(dtype)
    out = torch.empty_like(x)
    seed = torch.tensor([5])
    s, t = torch.randn(1024, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)
    table, index = torch.randn(10000, 64).to(dtype), torch.randint(0, 10000, (512, 10))
    return {
        "add": (ADD, [x], out, lambda x: x + x),
        "gelu": (GELU, [x], out, F.gelu),
        "chain": (
            CHAIN,
            [x],
            out,
            lambda x: torch.sigmoid(torch.tanh(F.gelu(torch.exp(torch.sin(x) * torch.cos(x))))),
        ),
        "softmax": (SOFTMAX, [x], out, lambda x: torch.softmax(x, -1)),
        "layernorm": (LAYERNORM, [x, w, b], out, lambda x, w, b: F.layer_norm(x, (C,), w, b)),
        "row_sum": (ROW_SUM, [x], torch.empty(R, dtype=dtype), lambda x: x.sum(1)),
        "column_sum": (COLUMN_SUM, [x], torch.empty(C, dtype=dtype), lambda x: x.sum(0)),
        "transpose_add": (TRANSPOSE_ADD, [s, t], torch.empty_like(s), lambda a, b: a + b.t()),
        "cumsum": (CUMSUM, [x], out, lambda x: x.cumsum(1)),
        "bias_gelu_dropout": (
            DROPOUT_2D,
            [x, b, seed],
            out,
            lambda x, b, seed: F.dropout(F.gelu(x + b), 0.1),
        ),
        "embedding_bag": (
            EMBEDDING_BAG,
            [table, index],
            torch.empty(512, 64, dtype=dtype),
            lambda w, i: F.embedding_bag(i, w, mode="sum"),
        ),
    }


def interleaved(
    first: Callable[[], object], second: Callable[[], object], rounds: int = 15
) -> tuple[float, float]:
    """Lower quartiles in microseconds of CPU time over alternating runs: other load on the machine
    then matters least.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for run, kept in zip((first, second), times, strict=True):
            run()
            start = time.thread_time()
            for _ in range(5):
                run()
            kept.append((time.thread_time() - start) / 5 * 1e6)
    return tuple(sorted(kept)[len(kept) // 4] for kept in times)  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--isa")
    options = parser.parse_args()
    torch.set_num_threads(1)
    toolchain = find_toolchain()
    isa = options.isa or toolchain.isa
    generator = CppCodeGenerator(
        dataclasses.replace(toolchain, isa=isa, features=detect_features(isa))
    )
    print(f"{'kernel':20} {'dtype':9} {'ours us':>9} {'eager us':>9} {'speedup':>8} {'error':>9}")
    with tempfile.TemporaryDirectory() as directory:
        store = ArtifactStore(directory + "/store")
        for dtype in (torch.float32, torch.bfloat16):
            cases = {
                name: case
                for name, case in make_cases(dtype).items()
                if not options.names or name in options.names
            }
            kernels = [
                parse_kernel(text.format(d=str(dtype).removeprefix("torch.")))
                for text, *_ in cases.values()
            ]
            start = time.perf_counter()
            launches = generator.build([generator.generate(kernel) for kernel in kernels], store)
            built = time.perf_counter() - start
            for (name, (_, inputs, out, eager)), launch in zip(
                cases.items(), launches, strict=True
            ):
                launch(*inputs, out)
                error = (out.double() - eager(*inputs).double()).abs().max().item()
                ours, theirs = interleaved(lambda: launch(*inputs, out), lambda: eager(*inputs))
                print(
                    f"{name:20} {str(dtype)[6:]:9} {ours:9.1f} {theirs:9.1f} {theirs / ours:8.2f} "
                    f"{error:9.1e}"
                )
            print(f"{len(kernels)} kernels built in {built:.2f} s")


if __name__ == "__main__":
    main()
