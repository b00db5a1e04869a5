import primops
import pytest
import torch
from loopir import (
    KernelSource,
    LoopIRError,
    Program,
    VerificationError,
    check_program,
    compile_graph,
)
from loopir.ir.program import Allocate, Free
from loopir.testing import EvaluatorCodeGenerator
from primops.testing import trace


def test_outputs_alias_inputs_only_where_the_graph_does(compiled):
    x = torch.randn(4, 5)
    host = compiled(lambda x: (x, x.view(-1), x.t(), x[1:], x.t() + 1, x.expand(3, 4, 5)), x)
    same, flat, transposed, rows, fresh, expanded = host(x)
    assert same is x
    for view in (flat, transposed, rows, expanded):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(rows, x[1:]) and expanded.stride() == (0, 5, 1)
    assert fresh.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_numbers_and_none_pass_through(compiled):
    assert compiled(lambda x: (x + 1, None, 3), torch.ones(2))(torch.ones(2))[1:] == [None, 3]


def test_inputs_are_not_written(compiled):
    x, i = torch.randn(6), torch.tensor([1, 1])
    before = x.clone()
    host = compiled(lambda x, i: x.index_put((i,), torch.ones(2), accumulate=True), x, i)
    assert torch.equal(host(x, i)[0], before.index_put((i,), torch.ones(2), accumulate=True))
    assert torch.equal(x, before)


def test_index_out_of_range_raises(compiled):
    host = compiled(lambda x, i: x[i] * 2, torch.randn(6), torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        host(torch.randn(6), torch.tensor([1, 6]))


def test_missing_code_generator_is_named():
    from loopir import generate, parse_kernel

    kernel = parse_kernel(
        "@kernel(device='cuda')\ndef k(out0: Out('float32', 1)):\n    v0 = constant(1.0, "
        "'float32')\n    store(out0, [0], v0)\n"
    )
    program = Program((), {}, {}, (kernel,), (), ())
    with pytest.raises(
        LoopIRError, match=r"no code generator for device 'cuda' \(there are: cpu\)"
    ):
        generate(program, {"cpu": EvaluatorCodeGenerator()})


def test_report(compiled):
    host = compiled(lambda x, w: (x @ w).relu().sum(), torch.randn(4, 4), torch.randn(4, 4))
    assert (host.kernel_count, host.launch_count, host.extern_count, host.extern_ops) == (
        1,
        1,
        1,
        ("aten.mm.default",),
    )
    assert isinstance(host.sources[0], KernelSource) and "def call(" in host.source


def test_wrong_strides_of_an_operator_are_repaired(compiled):
    x = torch.randn(2, 3, 8, 8)
    host = compiled(lambda x, w: torch.conv2d(x, w) + 1, x, torch.randn(4, 3, 3, 3))
    w = torch.randn(4, 3, 3, 3)
    got = host(x.to(memory_format=torch.channels_last), w)[0]
    assert got.is_contiguous()


def test_check_program_names_clauses(compiled):
    program = compiled(lambda x, w: (x @ w).relu(), torch.randn(4, 4), torch.randn(4, 4)).program
    check_program(program)

    def changed(steps, **fields):
        values = {name: getattr(program, name) for name in Program.__dataclass_fields__} | fields
        return Program(**{**values, "steps": tuple(steps)})

    allocate = next(step for step in program.steps if isinstance(step, Allocate))
    for clause, steps in {
        "C5.2": [step for step in program.steps if step is not allocate],
        "C5.4": [*program.steps, Free(program.outputs[0].buffer)],
    }.items():
        with pytest.raises(VerificationError) as error:
            check_program(changed(steps))
        assert error.value.clause == clause
    with pytest.raises(VerificationError, match=r"C5\.1"):
        check_program(changed(program.steps, kernels=()))
    with pytest.raises(VerificationError, match=r"C5\.2"):
        check_program(changed([allocate, *program.steps]))


def test_launches_in_a_row_are_one_run_over_a_slab(compiled):
    def steps(x):
        for _ in range(5):
            x = torch.cumsum(x.t() * 1.5, 1)
        return x, x.sum(0)

    host = compiled(steps, torch.randn(6, 5))
    assert host.source.count("run0(") == 1 and host.source.count("empty_strided(") == 3, host.source
    x = torch.randn(6, 5)
    for result, expected in zip(host(x), steps(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_slabs_have_symbolic_sizes(run_dynamic):
    host = run_dynamic(
        lambda x: torch.cumsum(torch.cumsum(torch.cumsum(x, 0).t().exp(), 1), 0) * 2,
        lambda n: (torch.randn(n, 3) / 4,),
        [[0]],
        sizes=(8, 3, 17),
    )
    assert "uint8" in host.source


def test_results_take_over_dying_operands_in_place(compiled):
    host = compiled(
        lambda x, w: ((x @ w).relu() @ w).softmax(1), torch.randn(8, 8), torch.randn(8, 8)
    )
    assert "empty_strided" not in host.source
    assert sum(isinstance(step, Allocate) and step.in_place for step in host.program.steps) == 2
    # read at another point than written: memory of its own
    host = compiled(lambda x, w: (x @ w).t().contiguous() + 1, torch.randn(8, 8), torch.randn(8, 8))
    assert "empty_strided" in host.source


def test_donated_inputs_are_memory(compiled):
    graph = primops.decompose(trace(lambda x, y: x * 2 + y, torch.randn(4), torch.randn(4)))
    graph.graph.find_nodes(op="placeholder")[0].meta["donated"] = True
    host = compile_graph(graph, (), codegens={"cpu": EvaluatorCodeGenerator()})
    x, y = torch.randn(4), torch.randn(4)
    expected = x * 2 + y
    (result,) = host(x, y)
    assert result.data_ptr() == x.data_ptr() and torch.equal(result, expected)
