"""Collectives in graphs: two processes run each program, eager and compiled, and every rank gets
what it gets eagerly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing
import torchstrata
from torch.distributed.device_mesh import init_device_mesh

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"
)


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    dist.all_reduce(doubled)
    return doubled + dist.get_rank()


def all_reduce_largest(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    return x.relu()


def broadcast(x: torch.Tensor) -> torch.Tensor:
    sent = x * 2
    dist.broadcast(sent, 1)
    return sent + x


def all_gather_into_tensor(x: torch.Tensor) -> torch.Tensor:
    gathered = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist._all_gather_base(gathered, x * 3)  # not yet deprecated under this name
    return gathered.sum(0)


def all_gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts, 1) + 1


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    mine = x.new_empty(x.shape[0] // 2, *x.shape[1:])
    dist.reduce_scatter(mine, [part.contiguous() for part in x.chunk(2)])
    return mine * 2


def reduce_scatter_tensor(x: torch.Tensor) -> torch.Tensor:
    mine = x.new_empty(x.shape[0] // 2, *x.shape[1:])
    dist._reduce_scatter_base(mine, x * 3)
    return mine * 2


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    taken = torch.empty_like(x)
    dist.all_to_all_single(taken, x)
    return taken * 2


def uneven_all_to_all(x: torch.Tensor) -> torch.Tensor:
    given = [[1, 3], [2, 2]]
    mine = [each[dist.get_rank()] for each in given]
    taken = x.new_empty(sum(mine), *x.shape[1:])
    dist.all_to_all_single(taken, x, mine, given[dist.get_rank()])
    return taken * 2


def functional_all_reduce(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x.sin(), "sum", dist.group.WORLD) * 2


def functional_gather(x: torch.Tensor) -> torch.Tensor:
    gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    return gather(x.sin(), 1, dist.group.WORLD).relu()


def functional_scatter(x: torch.Tensor) -> torch.Tensor:
    scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor
    return scatter(x.sin(), "sum", 0, dist.group.WORLD).relu()


def several(x: torch.Tensor) -> torch.Tensor:
    first, second = functional.all_reduce_coalesced([x, x * 2], "sum", dist.group.WORLD)
    return first + second


def unused_on_one_rank(x: torch.Tensor) -> torch.Tensor:
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    return total + 1 if dist.get_rank() == 0 else x * 2


def memory_between(x: torch.Tensor) -> torch.Tensor:
    scaled = x * 2
    pending = torch.ops._c10d_functional.all_gather_into_tensor(
        scaled, 2, dist.group.WORLD.group_name
    )
    other = x.exp()
    other = other / other.sum()
    return torch.ops._c10d_functional.wait_tensor(pending).sum() + other


class _Mesh:
    def __init__(self) -> None:
        self.mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        group = self.mesh.get_group("data")
        total = functional.all_reduce(x * self.mesh.get_local_rank(), "sum", group)
        return total * self.mesh.ndim * self.mesh.size() * group.size()


PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    all_reduce, all_reduce_largest, broadcast, all_gather_into_tensor, all_gather, reduce_scatter,
    reduce_scatter_tensor,
    all_to_all, uneven_all_to_all, functional_all_reduce, functional_gather, functional_scatter,
    several,
    unused_on_one_rank, memory_between,
]  # fmt: skip


def _rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torchstrata.config.fallback = "error"
    for program in [*PROGRAMS, _Mesh()]:
        name = getattr(program, "__name__", "mesh")
        torch.manual_seed(rank)
        x = torch.randn(4, 3)
        expected = _plain(program(x.clone()))
        for backend in ("eager", "torchstrata"):
            got = torchstrata.compile(program, backend=backend, fullgraph=True)(x.clone())
            assert type(got) is torch.Tensor, (name, backend, type(got))
            torch.testing.assert_close(
                got, expected, msg=lambda text: f"{name} {backend} rank {rank}: {text}"
            )
    _differentiates(rank)
    dist.destroy_process_group()
    # torch never frees a group that was given to a functional collective, in eager mode too. Its
    # threads then drop the tensors of the last collective when they can take the interpreter's
    # lock, and abort the process if that is while it exits.
    time.sleep(LAST_RELEASE)


LAST_RELEASE = 0.5  # seconds; the threads need microseconds


def _plain(result: Any) -> torch.Tensor:
    return result.wait() if isinstance(result, functional.AsyncCollectiveTensor) else result


def _differentiates(rank: int) -> None:
    """Where torch defines the derivative."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(
        "_c10d_functional::all_reduce", "Autograd"
    ):
        return
    for program in (functional_all_reduce, functional_gather, functional_scatter):
        gradients = []
        for call in (program, torchstrata.compile(program, fullgraph=True)):
            torch.manual_seed(rank)
            x = torch.randn(4, 3, requires_grad=True)
            _plain(call(x)).square().sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(
            gradients[1], gradients[0], msg=lambda text: f"{program.__name__} rank {rank}: {text}"
        )


def test_every_rank_gets_what_it_gets_eagerly(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path / "store"),), nprocs=2)


def _handle(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def test_a_handle_breaks_the_graph_and_a_new_group_is_another_graph(tmp_path: Path) -> None:
    def begin(name: str) -> None:
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path / name}", rank=0, world_size=1
        )

    x, compiled, handled = (
        torch.randn(3),
        torchstrata.compile(all_reduce),
        torchstrata.compile(_handle),
    )
    try:
        begin("first")
        assert torch.equal(compiled(x), x * 2) and torch.equal(handled(x), x * 2 + 1)
        assert torchstrata.counters["graph_breaks"]
    finally:
        dist.destroy_process_group()
    try:
        begin("second")
        assert torch.equal(compiled(x), x * 2)
    finally:
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="process group"):
        compiled(x)
