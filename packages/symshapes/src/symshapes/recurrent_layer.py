"""A layer of a GRU or plain recurrent network on the CPU, with all its directions: an operator of
the library ``symshapes`` in which the loop over time runs.

Time comes first, then directions, then the batch. A step is one batched product and a few
operations in place; of backward, what doesn't depend on the step before is computed for all steps
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch

Multiply: TypeAlias = Callable[[Any], None]
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3}
"""The gates of each kind of network; those of a GRU are reset, update, new."""
_SAVED = 4
_LIBRARY = torch.library.Library("symshapes", "FRAGMENT")
_LIBRARY.define(
    "recurrent_layer(Tensor gates, Tensor hx, Tensor weight, Tensor? bias, str kind, bool train)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "recurrent_layer_backward(Tensor grad, Tensor hx, Tensor weight, Tensor output, Tensor saved,"
    " str kind) -> (Tensor, Tensor, Tensor)"
)
RECURRENT_LAYER = torch.ops.symshapes.recurrent_layer.default
"""``gates`` [T, D, B, G * H] of the inputs, ``hx`` [D, B, H], ``weight`` [D, G * H, H], ``bias``
[D, G * H]; the outputs [T, D, B, H], and with ``train`` what backward needs besides.
"""
_BACKWARD = torch.ops.symshapes.recurrent_layer_backward.default


def _check(gates: Any, hx: Any, weight: Any, bias: Any, kind: str) -> None:
    """Raises RuntimeError for sizes that don't fit."""
    _, directions, batch, width = gates.shape
    hidden = hx.shape[-1]
    fit = width == GATES[kind] * hidden and tuple(hx.shape) == (directions, batch, hidden)
    fit = fit and tuple(weight.shape) == (directions, width, hidden)
    if not fit or (bias is not None and tuple(bias.shape) != (directions, width)):
        raise RuntimeError(
            f"{kind}: the state {[*hx.shape]} and the weight {[*weight.shape]} don't fit gates of "
            f"{[*gates.shape]} (time, directions, batch, gates)"
        )


def _empty(gates: Any, hx: Any, weight: Any, bias: Any, kind: str, train: bool) -> Any:
    _check(gates, hx, weight, bias, kind)
    length, directions, batch, _ = gates.shape
    hidden = hx.shape[-1]
    width = _SAVED * hidden if train and kind == "gru" else 0
    output = gates.new_empty((length, directions, batch, hidden))
    return output, gates.new_empty((length, directions, batch, width))


def _forward(gates: Any, hx: Any, weight: Any, bias: Any, kind: str, train: bool) -> Any:
    output, saved = _empty(gates, hx, weight, bias, kind, train)
    product = gates.new_empty(gates.shape[1:])
    transposed = weight.transpose(1, 2).contiguous()
    start = product.new_zeros(()) if bias is None else bias.unsqueeze(1)

    def multiply(state: Any) -> None:
        torch.baddbmm(start, state, transposed, out=product)

    if kind == "gru":
        _run_gru(gates, hx, product, multiply, output, saved)
    else:
        _run_plain(gates, hx, product, multiply, output, kind)
    return output, saved


def _run_plain(
    gates: Any, hx: Any, product: Any, multiply: Multiply, output: Any, kind: str
) -> None:
    function = torch.tanh_ if kind == "rnn_tanh" else torch.relu_
    state = hx
    for own, result in zip(gates.unbind(0), output.unbind(0)):
        multiply(state)
        state = function(torch.add(own, product, out=result))


def _run_gru(
    gates: Any, hx: Any, product: Any, multiply: Multiply, output: Any, saved: Any
) -> None:
    """The steps; what they use is sliced for all of them at once."""
    hidden, state, change = hx.shape[-1], hx, torch.empty_like(hx)
    parts = 2 * hidden, hidden
    of_both, of_new = product.split(parts, -1)
    train = bool(saved.shape[-1])
    kept = saved if train else gates.new_empty((1, *gates.shape[1:-1], _SAVED * hidden))
    kept = kept.expand((len(gates), *kept.shape[1:]))  # without backward all steps share one
    both, values, products = kept.split((*parts, hidden), -1)
    sliced = (*gates.split(parts, -1), both, *both.chunk(2, -1), values, products, output)
    for own, own_new, pair, reset, update, new, keep, result in zip(*(x.unbind(0) for x in sliced)):
        multiply(state)
        torch.add(own, of_both, out=pair).sigmoid_()
        torch.addcmul(own_new, reset, of_new, out=new).tanh_()
        if train:
            keep.copy_(of_new)
        state = torch.addcmul(new, update, torch.sub(state, new, out=change), out=result)


# -- backward --------------------------------------------------------------------------------------


def _empty_backward(grad: Any, hx: Any, weight: Any, output: Any, saved: Any, kind: str) -> Any:
    width = GATES[kind] * hx.shape[-1]
    both = width if kind == "gru" else 0
    sizes = output.shape[:-1]
    return grad.new_empty((*sizes, width)), grad.new_empty((*sizes, both)), grad.new_empty(hx.shape)


def _backward(grad: Any, hx: Any, weight: Any, output: Any, saved: Any, kind: str) -> Any:
    """Gradients of the inputs' gates, of the products (empty where they are the same), and of the
    state.
    """
    gates, products, state = _empty_backward(grad, hx, weight, output, saved, kind)
    factors, update, new = _factors(hx, output, saved, kind)
    found = products if kind == "gru" else gates
    totals = torch.empty_like(output)
    below = torch.zeros_like(hx)
    steps = zip(*(each.unbind(0) for each in (grad, factors, totals, found)))
    updates: Iterator[Any] = iter(() if update is None else update.unbind(0)[::-1])
    for own, factor, total, result in reversed(list(steps)):
        torch.add(own, below, out=total)
        shape = (*total.shape[:-1], -1, total.shape[-1])
        torch.mul(total.unsqueeze(-2), factor.view(shape), out=result.view(shape))
        passed = next(updates, None)
        below = (
            torch.bmm(result, weight)
            if passed is None
            else torch.baddbmm(total * passed, result, weight)
        )
    if kind == "gru":
        hidden = hx.shape[-1]
        gates.copy_(products)
        torch.mul(totals, new, out=gates[..., 2 * hidden :])
    return gates, products, state.copy_(below)


def _factors(hx: Any, output: Any, saved: Any, kind: str) -> tuple[Any, Any, Any]:
    """By what the gradient of an output is multiplied to give those of the products; for a GRU the
    update gate, and the factor of the new gate, too.
    """
    if kind == "rnn_tanh":
        return 1 - output * output, None, None
    if kind == "rnn_relu":
        return (output <= 0).logical_not().to(output.dtype), None, None  # NaN passes, as in eager
    reset, update, new, product = saved.chunk(_SAVED, -1)
    of_new = (1 - update) * (1 - new * new)
    of_reset = of_new * product * reset * (1 - reset)
    of_update = (_before(hx, output) - new) * update * (1 - update)
    return torch.cat((of_reset, of_update, of_new * reset), -1), update, of_new


def _before(hx: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """The states before each step."""
    return torch.cat((hx.unsqueeze(0), output[:-1]))


# -- the gradient's formula ------------------------------------------------------------------------


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    gates, hx, weight, bias, ctx.kind, _ = inputs
    ctx.save_for_backward(gates, hx, weight, bias, *output)


def _gradients(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
    gates, hx, weight, bias, output, saved = ctx.saved_tensors
    if torch.is_grad_enabled():
        inputs = (gates, hx, weight, bias)
        return (*_differentiable(ctx.kind, grad, inputs, ctx.needs_input_grad), None, None)
    own, products, state = _BACKWARD(grad, hx, weight, output, saved, ctx.kind)
    products = products if ctx.kind == "gru" else own
    rows = products.permute(1, 3, 0, 2).flatten(2)
    states = _before(hx, output).transpose(0, 1).flatten(1, 2)
    of_bias = None if bias is None else products.sum((0, 2))
    return own, state, torch.bmm(rows, states), of_bias, None, None


def _differentiable(kind: str, grad: Any, inputs: Any, needed: Any) -> list[Any]:
    """Gradients that can be differentiated: those of a layer made of torch's operators."""
    gates, hx, weight, bias = inputs
    state, outputs = hx, []
    for own in gates.unbind(0):
        product = torch.bmm(state, weight.transpose(1, 2))
        product = product if bias is None else product + bias.unsqueeze(1)
        if kind != "gru":
            state = getattr(torch, kind.removeprefix("rnn_"))(own + product)
        else:
            (r, z, n), (pr, pz, pn) = own.chunk(3, -1), product.chunk(3, -1)
            new = torch.tanh(n + torch.sigmoid(r + pr) * pn)
            state = new + torch.sigmoid(z + pz) * (state - new)
        outputs.append(state)
    wanted = [each for each, is_needed in zip(inputs, needed) if is_needed]
    found = iter(torch.autograd.grad(torch.stack(outputs), wanted, grad, create_graph=True))
    return [next(found) if is_needed else None for _, is_needed in zip(inputs, needed)]


for name, kernel, empty in (
    ("recurrent_layer", _forward, _empty),
    ("recurrent_layer_backward", _backward, _empty_backward),
):
    _LIBRARY.impl(name, kernel, "CPU")
    _LIBRARY.impl(name, empty, "Meta")
torch.library.register_autograd(
    "symshapes::recurrent_layer", _gradients, setup_context=_setup, lib=_LIBRARY
)
