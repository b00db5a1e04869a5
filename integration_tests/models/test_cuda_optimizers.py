"""Steps of optimizers as torch makes them by default: parameters on a CUDA device, the numbers of
steps on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torchstrata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Make = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    name: lambda ps, name=name: getattr(torch.optim, name)(ps)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
}
OPTIMIZERS |= {
    "AdamW one by one": lambda ps: torch.optim.AdamW(ps, foreach=False),
    "AdamW capturable": lambda ps: torch.optim.AdamW(ps, capturable=True),
    "RAdam capturable": lambda ps: torch.optim.RAdam(ps, capturable=True),
    "AdamW with a rate that is a tensor": lambda ps: torch.optim.AdamW(ps, torch.tensor(1e-3)),
}


def _parameters(count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    parameters = [
        torch.randn(16, 8 + 4 * (i % 3), device="cuda").requires_grad_() for i in range(count)
    ]
    for p in parameters:
        p.grad = torch.randn_like(p)
    return parameters


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default_steps_are_one_graph(name: str) -> None:
    torchstrata.reset()
    results = []
    for wrap in (lambda step: step, torchstrata.compile):
        parameters = _parameters(45)
        optimizer = OPTIMIZERS[name](parameters)
        with torchstrata.config.patch(fallback="error"):
            step = wrap(lambda optimizer=optimizer: optimizer.step())
            for _ in range(8):
                step()
        results.append(
            [
                *parameters,
                *(t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)),
            ]
        )
    for actual, expected in zip(*results, strict=True):
        assert actual.device == expected.device
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    counts = torchstrata.counters
    assert (counts["graph_breaks"], counts["fallbacks"]) == (0, 0)
    if "one by one" not in name:
        assert counts["generated_kernels"] <= 30  # not one for each parameter
