"""Writes through ``as_strided`` of a view: functionalisation refuses them, and the graph ran
eagerly.
"""

from __future__ import annotations

import pytest
import torch
import torchstrata

PROGRAMS = {
    "transposed": lambda x: x.t().as_strided((1, 4), (4, 1)).add_(1),
    "detached": lambda x: x.detach().as_strided((1, 4), (4, 1)).add_(1),
    "detached by the function": lambda x: torch.detach(x).as_strided((1, 4), (4, 1)).add_(1),
    "data of data": lambda x: x.data[:1].data.as_strided((2, 2), (3, 1)).mul_(2),
    "at an offset": lambda x: x[1:].as_strided((2, 2), (2, 1), 3).add_(1),
    "of a value inside": lambda x: (
        lambda y: (y, y.view(-1)[2:].as_strided((2, 2), (2, 1)).mul_(3))
    )(x * 2),
    "of an array": lambda x: (
        torch.from_numpy(x.detach().numpy()).as_strided((1, 4), (4, 1)).add_(1)
    ),
    "of a squeezed input": lambda x: (
        x.squeeze_(0).as_strided((1, 4), (4, 1)).add_(1).sum(),
        x * 2,
    ),
    "of a transposed input": lambda x: (
        x.t_().as_strided((2, 2), (4, 1))[1:].mul_(3).sum(),
        x.add_(1),
    ),
    "of a value transposed inside": lambda x: (
        lambda y: (y.t_().as_strided((2, 2), (4, 1), 1).mul_(3), y)
    )(x * 1),
    "read only": lambda x: x[1:].as_strided((2, 2), (2, 1)) * 2,
    "read from data": lambda x: (
        x.data[1:].as_strided((2, 2), (2, 1)) * 2,
        x.t().as_strided((2, 2), (1, 1), 3) + 1,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_reach_the_base(name, first, dynamic):
    def run(call):
        base = torch.arange(24.0).reshape(6, 4)
        x = base[first : first + 3]
        results = call(x)
        return (
            base.tolist(),
            x.shape,
            [r.tolist() for r in (results if isinstance(results, tuple) else (results,))],
        )

    torchstrata.reset()
    assert run(torchstrata.compile(PROGRAMS[name], fullgraph=True, dynamic=dynamic)) == run(
        PROGRAMS[name]
    )
    assert torchstrata.counters["fallbacks"] == 0 or (first and name == "at an offset")  # AG022
