"""The operator ``bytecode_dynamo::attention`` on CUDA devices: generated kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from .backward import gradients
from .configurations import FORWARD, configuration
from .few_queries import has_few_queries, run_few
from .forward import generate_forward
from .running import Call, Kernels, Result, build_on_device, prepare

_LIBRARY = torch.library.Library("bytecode_dynamo", "IMPL")
ON_DEVICE = Kernels(build_on_device)


def result_like(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Memory for the output: heads and positions in the order of the query's."""
    batch, heads, length, _ = query.shape
    if query.transpose(1, 2).is_contiguous():
        return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
    return query.new_empty((batch, heads, length, value.shape[-1]))


def run_forward(call: Call, kernels: Kernels, out: torch.Tensor, sums: torch.Tensor) -> None:
    """Computes the output and the logarithms of the sums of exponentials."""
    config = configuration(FORWARD, call.problem)
    lists = call.blocks[: call.lists]
    tensors = [call.query, call.key, call.value, out, sums, *lists, *call.captured]
    sizes = call.sizes([call.query, call.key, call.value, out], lists)
    generate = partial(generate_forward, call.problem)
    kernels.launch((FORWARD, call.problem), generate, config, tensors, sizes)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any,
    kernels: Kernels = ON_DEVICE,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention by a generated kernel, or by the operator's dense meaning where none is possible:
    odd blocks, long rows.
    """
    call = prepare(query, key, value, *others)
    if isinstance(call, str):
        return _dense("attention", query, key, value, *others)
    out = Result(result_like(query, value))
    sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
    if has_few_queries(call):
        run_few(call, None, kernels, out.memory, sums)
    else:
        run_forward(call, kernels, out.memory, sums)
    return out.finish(), sums


def attend_backward(
    grad: torch.Tensor, grad_sums: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor,
    value: torch.Tensor, out: torch.Tensor, sums: torch.Tensor, *others: Any,
    kernels: Kernels = ON_DEVICE,
) -> Sequence[torch.Tensor]:  # fmt: skip
    """The gradients of query, key and value, likewise."""
    call = prepare(query, key, value, *others)
    if isinstance(call, str):
        operands = (grad, grad_sums, query, key, value, out, sums)
        return _dense("attention_backward", *operands, *others)
    results = [Result(torch.empty_like(x)) for x in (query, key, value)]
    gradients(call, kernels, (grad, grad_sums, out, sums), [each.memory for each in results])
    return tuple(each.finish() for each in results)


def _dense(name: str, *args: Any) -> Any:
    return getattr(torch.ops.bytecode_dynamo, name).dense(*args)


_LIBRARY.impl("attention", attend, "CUDA")
_LIBRARY.impl("attention_backward", attend_backward, "CUDA")
