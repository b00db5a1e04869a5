"""DTensors: programs and modules on sharded tensors are one graph each, with the values, gradients
and placements of eager mode, in one process and in two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bytecode_dynamo
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
import torchstrata
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"
)
if dist.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

# what each program gets: the placement of a tensor of 8 by 4 and of one of 4 by 4; None for a
# plain tensor
ROWS, COLUMNS, WHOLE = 0, 1, None


def pointwise(x: Any, w: Any) -> Any:
    return x * 2 + x.sin()


def matmul(x: Any, w: Any) -> Any:
    return (x @ w).relu()


def whole_sum(x: Any, w: Any) -> Any:
    return (x * 2).sum(), w + 1


def local(x: Any, w: Any) -> Any:
    return x.to_local() * 2


def from_local(x: Any, w: Any) -> Any:
    again = DTensor.from_local(x.to_local() + 1, x.device_mesh, [Shard(0)])
    return again * 2


def other_rows(x: Any, w: Any) -> Any:
    return x.redistribute(w.device_mesh, [Shard(-1)]).cos() + 1


def gathered(x: Any, w: Any) -> Any:
    return x.redistribute(placements=(Replicate(),)) @ w, x + 1


def full(x: Any, w: Any) -> Any:
    return x.full_tensor().softmax(0)


def read(x: Any, w: Any) -> Any:
    (placement,) = x.placements
    if placement == Shard(0) and placement.is_shard() and not isinstance(placement, Partial):
        x = x * (placement.dim + 2)
    return x + x.device_mesh.size() + len(x.shape)


def written(x: Any, w: Any) -> Any:
    return (x * 2).add_(1).mul_(w.shape[0])


def embedded(x: Any, w: Any) -> Any:
    rows = distribute_rows(torch.tensor([1, 7, 3]), x.device_mesh)
    return nn.functional.embedding(rows, x).redistribute(placements=[Replicate()])


def distribute_rows(rows: torch.Tensor, mesh: DeviceMesh) -> Any:
    return DTensor.from_local(rows, mesh, [Replicate()])


def normal(x: Any, w: Any) -> Any:
    return nn.functional.layer_norm(x, (4,)).view(2, -1, 4).transpose(1, 2)


def distributed(x: Any, w: Any) -> Any:
    mesh, given = x.device_mesh, x.full_tensor().detach() + x.device_mesh.get_rank()
    own = distribute_tensor(given, mesh, [Shard(-1)], src_data_rank=None)
    rows, whole = distribute_tensor(given, mesh, [Shard(0)]), distribute_tensor(given, mesh)
    return x * 2, rows * 2, whole + 1, own


def checked(x: Any, w: Any) -> Any:
    mesh, rank = w.device_mesh, w.device_mesh.get_rank()
    whole = DTensor.from_local(w.to_local() + rank, mesh, [Replicate()], run_check=True)
    return whole * 2, DTensor.from_local(x.to_local(), mesh, [Shard(0)], run_check=True)


def written_before(x: Any, w: Any) -> Any:
    y = x * 2
    y.add_(1)
    z = y.to_local() + 1
    return DTensor.from_local(z.relu_(), x.device_mesh, [Shard(0)]) * 3


PROGRAMS: list[tuple[Callable[..., Any], Any, Any]] = [
    (pointwise, ROWS, WHOLE), (matmul, ROWS, WHOLE), (matmul, COLUMNS, ROWS),
    (whole_sum, ROWS, ROWS), (local, ROWS, WHOLE), (from_local, ROWS, WHOLE),
    (other_rows, ROWS, WHOLE), (gathered, ROWS, WHOLE), (full, ROWS, WHOLE), (full, COLUMNS, WHOLE),
    (read, ROWS, WHOLE), (read, WHOLE, WHOLE), (written, ROWS, WHOLE), (embedded, ROWS, WHOLE),
    (normal, ROWS, WHOLE), (distributed, ROWS, WHOLE), (checked, ROWS, WHOLE),
    (written_before, ROWS, WHOLE),
]  # fmt: skip

COLLECTIVE = [
    (matmul, COLUMNS, ROWS), (whole_sum, ROWS, ROWS), (distributed, ROWS, WHOLE),
    (checked, ROWS, WHOLE),
]  # fmt: skip


def operand(
    mesh: DeviceMesh, dim: int | None, rows: int = 8, requires_grad: bool = True
) -> torch.Tensor:
    values = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
    placement = Replicate() if dim is None else Shard(dim)
    return distribute_tensor(values, mesh, [placement]).requires_grad_(requires_grad)


def assert_one_graph(graphs: int = 1) -> None:
    counters = torchstrata.counters
    names = ("graphs", "graph_breaks", "fallbacks", "recompiles")
    assert [counters[name] for name in names] == [graphs, 0, 0, graphs - 1]


def parts(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, tuple) else [results]


def plain(value: Any) -> Any:
    value = value.to_local() if isinstance(value, DTensor) else value
    return value.wait() if hasattr(value, "wait") else value


def assert_same(got: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    for a, b in zip(got, expected, strict=True):
        assert isinstance(a, DTensor) is isinstance(b, DTensor), what
        if isinstance(b, DTensor):
            layouts = [(t.device_mesh, t.placements, t.shape, t.stride()) for t in (a, b)]
            assert layouts[0] == layouts[1], what
        assert a.requires_grad == b.requires_grad, what
        torch.testing.assert_close(plain(a), plain(b), msg=lambda text: f"{what}: {text}")


def with_gradients(call: Any, args: Sequence[Any], owners: Sequence[Any]) -> list[Any]:
    results = parts(call(*args))
    weighted = [plain(r) for r in results if r.requires_grad]
    sum((w * (torch.arange(w.numel()).view(w.shape) + 1)).sum() for w in weighted).backward()
    return [*results, *(owner.grad for owner in owners if owner.grad is not None)]


def check_programs(mesh: DeviceMesh, programs: Sequence[Any] = PROGRAMS) -> None:
    for program, first, second in programs:
        what = f"{program.__name__} of {first}, {second} in rank {mesh.get_rank()}"
        torchstrata.reset()
        compiled = torchstrata.compile(program, fullgraph=True)
        found = []
        for call in (program, compiled):
            args = operand(mesh, first), operand(mesh, second, rows=4)
            found.append(with_gradients(call, args, args))
        assert_same(found[1], found[0], what)
        with torch.no_grad():
            assert_same(parts(compiled(*args)), parts(program(*args)), what)
        assert torchstrata.counters["graph_breaks"] == torchstrata.counters["fallbacks"] == 0, what
        assert torchstrata.counters["graphs"] == 2, what


def check_uneven_shards(
    mesh: DeviceMesh, programs: Sequence[Any] = (matmul, other_rows, full, gathered)
) -> None:
    check_rows(mesh, programs, (5, 3))


def check_batches(
    mesh: DeviceMesh,
    programs: Sequence[Any] = (pointwise, matmul, other_rows, full, gathered, read),
) -> None:
    check_rows(mesh, programs, (8, 12, 16, 6, 20))


def check_rows(mesh: DeviceMesh, programs: Sequence[Any], sizes: Sequence[int]) -> None:
    for program in programs:
        torchstrata.reset()
        compiled = torchstrata.compile(program, fullgraph=True)
        for rows in sizes:
            found = []
            for call in (program, compiled):
                args = operand(mesh, ROWS, rows), operand(mesh, WHOLE, 4)
                found.append(with_gradients(call, args, args))
            assert_same(found[1], found[0], f"{program.__name__} of {rows} rows")
        assert_one_graph(2)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        return x + self.down(torch.relu(self.up(x)))


def parallel(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    plan = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    return parallelize_module(Network(), mesh, plan)


def check_tensor_parallelism(mesh: DeviceMesh) -> None:
    torchstrata.reset()
    models = [parallel(mesh), parallel(mesh)]
    calls = [models[0], torchstrata.compile(models[1], fullgraph=True)]
    for length in (3, 5, 6):
        words = torch.arange(2 * length).view(2, length) % 10
        found = [
            with_gradients(call, [words], list(model.parameters()))
            for call, model in zip(calls, models)
        ]
        assert len(found[0]) == 6
        assert_same(found[1], found[0], f"{length} words in rank {mesh.get_rank()}")
    assert_one_graph(2)


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[DeviceMesh]:
    torchstrata.reset()
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "check", [check_programs, check_uneven_shards, check_batches, check_tensor_parallelism]
)
def test_one_process(mesh: DeviceMesh, check: Callable[[DeviceMesh], None]) -> None:
    check(mesh)


def _rank(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    check_programs(mesh, COLLECTIVE)
    check_uneven_shards(mesh, (gathered,))
    check_batches(mesh, (other_rows, gathered))
    check_tensor_parallelism(mesh)
    dist.destroy_process_group()
    time.sleep(0.5)  # see api/test_collectives.py


def test_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path / "store"),), nprocs=2)


def test_other_placements_are_another_graph(mesh: DeviceMesh) -> None:
    compiled = torchstrata.compile(pointwise, fullgraph=True)
    for dim in (ROWS, COLUMNS, WHOLE, ROWS):
        x = operand(mesh, dim)
        result = compiled(x, x)
        assert result.placements == x.placements
        assert_same([result], [pointwise(x, x)], f"placement {dim}")
    assert_one_graph(3)


def test_placements_of_the_program_are_guarded_by_value(mesh: DeviceMesh) -> None:
    def program(x: Any, placements: Any) -> Any:
        return x.redistribute(placements=placements) * 2

    compiled = torchstrata.compile(program, fullgraph=True)
    for placements in ([Shard(0)], [Shard(0)], [Replicate()]):
        assert compiled(operand(mesh, COLUMNS), placements).placements == tuple(placements)
    assert_one_graph(2)


def test_errors_of_placements_are_the_programs(mesh: DeviceMesh) -> None:
    def program(x: Any) -> Any:
        try:
            return x.redistribute(placements=[Shard("rows")])
        except TypeError:
            return x + hasattr(x.placements[0], "rows") + 1

    x = operand(mesh, ROWS)
    got = torchstrata.compile(program, fullgraph=True)(x)
    assert_same([got], [program(x)], "Shard of a text")
    assert_one_graph()


def test_what_is_not_captured_breaks_the_graph_at_its_line(mesh: DeviceMesh) -> None:
    def program(x: torch.Tensor) -> Any:
        return distribute_tensor(x + 1, mesh, [Partial()]) * 2

    x = torch.randn(4, 4)
    assert_same([torchstrata.compile(program)(x)], [program(x)], "distribute_tensor")
    assert torchstrata.counters["graph_breaks"] == 1
    with pytest.raises(bytecode_dynamo.Unsupported, match=r"return distribute_tensor\(x \+ 1"):
        torchstrata.compile(program, fullgraph=True)(x)


def test_a_parameter_keeps_its_local_tensor(mesh: DeviceMesh) -> None:
    weight = nn.Parameter(operand(mesh, ROWS, requires_grad=False))
    local = torchstrata.compile(lambda w: w.to_local(), fullgraph=True)(weight)
    assert isinstance(local, nn.Parameter) is isinstance(weight.to_local(), nn.Parameter)
    assert local.data_ptr() == weight.to_local().data_ptr()


def test_distributed_leaf_collects_its_own_gradient(mesh: DeviceMesh) -> None:
    def program(x: torch.Tensor) -> Any:
        rows = distribute_tensor(x, mesh, [Shard(0)])
        (rows * 3).sum().backward()
        return rows.grad

    x = torch.randn(4, 4, requires_grad=True)
    assert_same([torchstrata.compile(program, fullgraph=True)(x)], [program(x)], "gradient")
    assert x.grad is None


def test_distribute_tensor_of_a_result_raises_as_in_eager_mode(mesh: DeviceMesh) -> None:
    def program(x: torch.Tensor) -> Any:
        return distribute_tensor(x * 2, mesh, [Shard(0)])

    with pytest.raises(RuntimeError, match="found non-leaf tensor"):
        torchstrata.compile(program, fullgraph=True)(torch.randn(4, requires_grad=True))


def test_writes_to_the_only_name_of_local_tensors(mesh: DeviceMesh) -> None:
    def program(x: Any) -> Any:
        local = (x * 2).to_local()
        local.add_(1)
        local[0] = 3
        whole = DTensor.from_local(x.to_local() + 1, mesh, [Shard(0)])
        return local.t(), whole.mul_(2) + 1

    x = operand(mesh, ROWS, requires_grad=False)
    assert_same(torchstrata.compile(program, fullgraph=True)(x), program(x), "writes")
    assert_one_graph()


@pytest.mark.filterwarnings("ignore:a graph runs eagerly")
def test_writes_that_other_names_see(mesh: DeviceMesh) -> None:
    def later(x: Any) -> Any:
        y = x * 2
        local = y.to_local()
        y.mul_(2)
        return local

    def given(x: Any) -> Any:
        x.add_(1)
        return x.to_local()

    for program in (later, given):
        found = []
        for call in (program, torchstrata.compile(program)):
            x = operand(mesh, ROWS, requires_grad=False)
            found.append([call(x), x])
            is_alias = found[-1][0].data_ptr() == x.to_local().data_ptr()
            assert is_alias is (program is given)
        assert_same(found[1], found[0], program.__name__)
