"""Values that numerics="fast" leaves in float32 are stored in 16 bits where eager rounds them
anyway, and only there.
"""

import pytest
import torch
from loopir.ir.program import Allocate

FLOAT, HALF = torch.float32, torch.bfloat16


def stored(host):
    """Dtypes of the tensors that kernels write, scalars apart."""
    made = {step.buffer for step in host.program.steps if isinstance(step, Allocate)}
    return {host.program.buffers[name].dtype for name in made if host.program.buffers[name].shape}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_residual_between_kernels_is_stored_as_eager_rounds_it(run, dtype):
    def fn(x, y, w):
        hidden = (x * y + y).exp()
        return (
            torch.mm(hidden, w) + hidden,
            hidden.view(-1).sin() @ hidden.view(-1).cos(),
            hidden.t() + 1,
        )

    host = run(fn, *(torch.randn(64, 64, dtype=dtype) / 8 for _ in range(3)), tolerance=5e-2)
    assert stored(host) == {dtype}


def test_what_a_user_converts_is_still_read_in_float32(run):
    def fn(x, w):
        whole = (x * 3).exp()
        return whole.bfloat16(), (whole @ w) + whole.sin(), whole * 1e4

    host = run(fn, torch.randn(32, 32), torch.randn(32, 32))
    assert FLOAT in stored(host)


def test_what_an_operator_computes_inside_stays_float32(run):
    """The normalised values are rounded as a result, and read before rounding within the
    operator.
    """

    def fn(x, w, b):
        mean = x.float().mean(1, keepdim=True)
        centred = x.float() - mean
        return centred.bfloat16(), centred * centred.square().mean(1, keepdim=True).rsqrt()

    run(
        fn,
        torch.randn(16, 48).bfloat16() + 30,
        torch.randn(48).bfloat16(),
        torch.randn(48).bfloat16(),
        tolerance=1e-5,
    )


def test_views_of_a_rounded_value(run):
    def fn(x, w):
        y = torch.sigmoid(x) * x + x.tanh()
        return y.reshape(4, 4, 64) * 2, torch.mm(y.t(), w), torch.cat([y, y + 1]), y.sum(0)

    host = run(fn, torch.randn(16, 64).bfloat16(), torch.randn(16, 8).bfloat16(), tolerance=5e-2)
    assert stored(host) == {HALF}
