"""The evaluator's own spread explains differences of order, and no others."""

import torch
from loopir import evaluate_kernel, parse_kernel
from loopir.testing.conditioning import unexplained

ADDED = """
@kernel(device='cpu')
def added(x: In('float32', 3000), total: InOut('float32', 1)):
    for i in range(3000):
        v = load(x, [i], 'float32')
        store(total, [0], v, mode='add')
"""


def test_additions_to_a_place_may_go_in_any_order():
    kernel = parse_kernel(ADDED)
    inputs = [torch.linspace(-3, 3.3, 3000).sort().values, torch.zeros(1)]
    expected = [tensor.clone() for tensor in inputs]
    evaluate_kernel(kernel, expected)
    exact = inputs[0].double().sum().float().reshape(1)
    assert exact.item() != expected[1].item()
    assert unexplained(kernel, inputs, (), [inputs[0], exact], expected, rtol=0, atol=0) is None
    wrong = unexplained(kernel, inputs, (), [inputs[0], exact + 3], expected, rtol=0, atol=0)
    assert wrong is not None and wrong.startswith("total[0]")
