"""NumPy writes to the memory of tensors, of which no version of a tensor tells."""

from __future__ import annotations

import numpy
import pytest
import torch
import torchstrata

from .outcome import outcome


def written_after_saving(x, log):
    x = (x * 2).relu_()
    array = x.detach().numpy()
    array += 1
    return x


def written_as_given(x, log):
    y = x * x
    array = x.detach().numpy()
    array += 1
    return y


def two_tensors_of_one_array(x, log):
    array = x.detach().numpy()
    one, other = torch.from_numpy(array), torch.from_numpy(array)
    weight = torch.ones(3, requires_grad=True)
    y = weight * one
    other.add_(1)
    y.sum().backward()
    return weight.grad


def refused_afterwards(x, log):
    log.append("before")
    array = x.detach().numpy()
    array += 1
    y = x.detach().as_strided((x.numel() + 1,), (1,))
    log.append("after")
    return y


def data_exchanged_after_a_view(x, log):
    array = x.detach().numpy()
    tensor = torch.from_numpy(array)
    view = tensor[1:]
    tensor.data = tensor.data * 2
    tensor.add_(1)
    return view, tensor


PROGRAMS = [
    written_after_saving, written_as_given, two_tensors_of_one_array, refused_afterwards,
    data_exchanged_after_a_view
]  # fmt: skip


def observe(call):
    x, log = torch.ones(3, requires_grad=True), []
    version = x._version
    result = outcome(call, x, log)
    if isinstance(result, torch.Tensor) and result.requires_grad:
        outcome(result.sum().backward)
    values = result.detach() if isinstance(result, torch.Tensor) else result
    return repr((values, log, x, x.grad, x._version == version))


@pytest.mark.parametrize("backend", ["eager", "torchstrata"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_writes_are_eagers(program, backend):
    expected = observe(program)
    compiled = torchstrata.compile(program, backend=backend)
    assert [observe(compiled) for _ in range(2)] == [expected] * 2


VIEWS = {
    "data": lambda x: x.data,
    "detached": lambda x: x.detach(),
    "data of a detached tensor": lambda x: x.detach().data,
    "a part of data": lambda x: x.data[0],
    "data, seen otherwise, detached": lambda x: x.data.view(-1).detach(),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("leaf_between", [False, True])
def test_data_counts_for_itself(name, leaf_between):
    """What was returned as ``.data`` counted writes together with what it is of."""

    def function(x):
        view = VIEWS[name](x)
        return view, torch.ones(2).requires_grad_() if leaf_between else None

    def run(call):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_() * 2
        view, _ = call(x)
        view.add_(1)
        return x._version, view._version, view._is_view(), x.tolist()

    assert run(torchstrata.compile(function, fullgraph=True)) == run(function)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_storage_begins_where_its_array_does(backend):
    def function(x):
        array = x[:, 2:6].detach().numpy()
        one, array[0] = torch.from_numpy(array), 7
        other = torch.as_tensor(array[1:])
        one.add_(1)
        part = torch.from_numpy((x * 2)[:1].detach().numpy())
        return (
            one,
            one,
            one[1:],
            one.t(),
            other,
            array,
            torch.from_numpy(numpy.sin(array)),
            one * 2,
            part,
        )

    def observe(call, rows):
        x = torch.arange(rows * 8.0).reshape(rows, 8)
        results = call(x)
        shared = [result for result in map(torch.as_tensor, results[:6])]
        places = [
            (
                r.untyped_storage().data_ptr() - x.data_ptr(),
                r.untyped_storage().nbytes(),
                r.storage_offset(),
                r._version,
                r.stride(),
            )
            for r in shared
        ]
        places += [(results[-1].untyped_storage().nbytes(), results[-1].storage_offset())]
        identities = [
            (a is b, a._base is b) for a in results for b in results if isinstance(a, torch.Tensor)
        ]
        return repr((x, results, places, identities))

    torchstrata.reset()
    compiled = torchstrata.compile(function, backend=backend, fullgraph=True)
    for rows in (3, 4, 6):
        assert observe(compiled, rows) == observe(function, rows)


def test_arrays_in_inference_mode():
    @torch.inference_mode()
    def function(x):
        made = torch.from_numpy(x[1:].numpy())
        return made, made[:1], made + 1

    x = torch.arange(6.0).reshape(3, 2)
    torchstrata.reset()
    assert repr(torchstrata.compile(function, backend="eager")(x)) == repr(function(x))


def test_arrays_are_written_once_by_a_graph_that_fails():
    """Nothing tells whether they were written before it failed, so the call can't run again."""

    def failing(module, inputs):
        def run(*values):
            module(*values)
            raise RuntimeError("after all writes")

        return run

    def function(x, array):
        numpy.add(array, 1, out=array)
        return x * 2

    array = numpy.zeros(3)
    with pytest.raises(RuntimeError, match="after all writes"):
        torchstrata.compile(function, backend=failing)(torch.ones(3), array)
    assert array.tolist() == [1, 1, 1]
