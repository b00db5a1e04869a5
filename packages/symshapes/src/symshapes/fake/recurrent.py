"""Recurrent networks as calls of layers.

torch's Python kernels unroll them over time: hundreds of operators that depend on the length. Eager
mode calls cuDNN on CUDA devices, and oneDNN for an LSTM on the CPU. A GRU or plain network on the
CPU becomes layers of our own (``recurrent_layer``). Packed sequences, autocast on the CPU, and
LSTMs there in float64 or with projections stay unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.utils._python_dispatch import _disable_current_modes

from symshapes.recurrent_layer import RECURRENT_LAYER

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""The numbers that cuDNN and oneDNN give to the kinds of networks."""


def recurrent(op: Any, previous: Callable[..., Any], *args: Any) -> Any:
    """A recurrent network.

    ``op`` takes sequences (``.input``, maybe ``batch_first``) or packed ones (``.data``).
    ``previous`` unrolls it, without dropout between layers.
    """
    names = ["input", *(a.name for a in op._schema.arguments[1:])]
    call = dict(zip(names, args))
    if call["train"] and call["dropout"] and call["num_layers"] > 1:
        return _layer_by_layer(call, partial(recurrent, op, previous))
    if _takes_cudnn(call):
        return _cudnn(call, MODES[op.overloadpacket.__name__])
    if op is aten.lstm.input and _takes_onednn(call):
        return _onednn(call)
    if _takes_own_layers(op, call):
        return _own_layers(call, op.overloadpacket.__name__)
    return previous(*args)


def _states(call: dict[str, Any]) -> list[torch.Tensor]:
    given = call["hx"]
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _layer_by_layer(call: dict[str, Any], run: Callable[..., Any]) -> Any:
    """Each layer alone, with dropout between layers."""
    batch_first = call.get("batch_first", False)
    x = call["input"].transpose(0, 1) if batch_first else call["input"]
    layers, directions, states = call["num_layers"], 1 + call["bidirectional"], call["hx"]
    count, ends = len(call["params"]) // layers, []
    for i in range(layers):
        rows = i * directions, directions
        begin = (
            states.narrow(0, *rows)
            if isinstance(states, torch.Tensor)
            else [s.narrow(0, *rows) for s in states]
        )
        own = {"hx": begin, "params": call["params"][i * count :][:count], "num_layers": 1}
        if "batch_first" in call:
            own["batch_first"] = False
        own["input"] = x if i == 0 else torch.dropout(x, call["dropout"], True)
        x, *end = run(*(call | own).values())
        ends.append(end)
    return (x.transpose(0, 1) if batch_first else x, *map(torch.cat, zip(*ends)))


# -- cuDNN -----------------------------------------------------------------------------------------


def _takes_cudnn(call: dict[str, Any]) -> bool:
    """Whether eager mode would call cuDNN. Packed sequences stay unrolled: their batch sizes are
    data.
    """
    x, backend = call["input"], torch.backends.cudnn
    if x.device.type != "cuda" or "batch_sizes" in call or not backend.enabled or x.numel() == 0:
        return False
    return _is_acceptable(x.device, _autocast(x))


@cache
def _is_acceptable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether cuDNN takes the dtype on this device; False without a device to ask."""
    if not torch.cuda.is_available():
        return False
    with _disable_current_modes(), torch._C._DisablePythonDispatcher():
        return torch.cudnn_is_acceptable(torch.empty(1, device=device, dtype=dtype))


def _autocast(x: torch.Tensor) -> torch.dtype:
    """The dtype in which autocast runs a network on ``x``: float16, whatever autocast's is."""
    if torch.is_autocast_enabled("cuda") and x.dtype in (torch.float32, torch.bfloat16):
        return torch.float16
    return x.dtype


def _cudnn(call: dict[str, Any], mode: int) -> Any:
    """All layers in one call of cuDNN, with an empty flat buffer of the weights: the real one is
    at addresses that only a run knows.
    """
    (hx, *rest), batch_first = _states(call), call.get("batch_first", False)
    # backward reads the memory of the output, in which time comes first
    x = call["input"].transpose(0, 1) if batch_first else call["input"]
    dtype = _autocast(x)
    hidden = rest[0] if rest else hx
    width, projected = hidden.shape[2], hx.shape[2] if hx.shape[2] != hidden.shape[2] else 0
    x, hx, *params = (each.to(dtype) for each in (x, hx, *call["params"]))
    cx = rest[0].to(dtype) if rest else None
    count = (4 if call["has_biases"] else 2) + bool(projected)
    with torch.autocast("cuda", enabled=False):
        output, hy, cy, _, _ = aten._cudnn_rnn(
            x, params, count, hx.new_empty(0), hx, cx, mode, width, projected, call["num_layers"],
            False, 0.0, call["train"], call["bidirectional"], [], None,
        )  # fmt: skip
    output = output.transpose(0, 1) if batch_first else output
    return (output, hy, cy) if rest else (output, hy)


def gru_cell(
    previous: Callable[..., Any], x: Any, hx: Any, weight: Any, state_weight: Any, *biases: Any
) -> Any:
    """A cell's step. On CUDA devices eager mode calls a kernel for all after the products, which
    has no meta kernel and computes in float32 at least.
    """
    if x.device.type != "cuda":
        return previous(x, hx, weight, state_weight, *biases)
    wide = torch.promote_types(x.dtype, torch.float32)
    own, state = (
        torch.nn.functional.linear(value, matrix).to(wide)
        for value, matrix in ((x, weight), (hx, state_weight))
    )
    if any(bias is not None for bias in biases):
        own, state = own + biases[0].to(wide), state + biases[1].to(wide)
    (reset, update, new), parts = own.chunk(3, 1), state.chunk(3, 1)
    reset, update = (reset + parts[0]).sigmoid(), (update + parts[1]).sigmoid()
    new = (new + reset * parts[2]).tanh()
    return ((hx.to(wide) - new) * update + new).to(hx.dtype)


# -- oneDNN ----------------------------------------------------------------------------------------


def _takes_onednn(call: dict[str, Any]) -> bool:
    """Whether eager mode would call oneDNN."""
    x, (hx, cx) = call["input"], _states(call)
    if not torch.backends.mkldnn.enabled or x.numel() == 0 or hx.shape[2] != cx.shape[2]:
        return False
    if any(each.device.type != "cpu" for each in (x, hx, cx, *call["params"])):
        return False
    if x.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if x.dtype is torch.float16:
        return not torch.is_grad_enabled() and torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return x.dtype is torch.float32


def _onednn(call: dict[str, Any]) -> Any:
    """One call of oneDNN per layer and direction."""
    batch_first, directions = call["batch_first"], 1 + call["bidirectional"]
    hx, cx = (state.contiguous() for state in _states(call))
    x = (call["input"].transpose(0, 1) if batch_first else call["input"]).contiguous()
    count, ends = 4 if call["has_biases"] else 2, []
    for layer in range(call["num_layers"]):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            weights = call["params"][i * count :][:count]
            biases: Sequence[Any] = weights[2:] or [torch.zeros_like(w) for w in weights]
            output, hy, cy, _ = aten.mkldnn_rnn_layer(
                x, *weights[:2], *biases, hx[i], cx[i], direction > 0, [], MODES["lstm"],
                hx.shape[2], call["num_layers"], call["has_biases"], call["bidirectional"],
                batch_first, call["train"],
            )  # fmt: skip
            outputs.append(output)
            ends.append((hy, cy))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    return (x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*ends)))


# -- our own layers --------------------------------------------------------------------------------


def _takes_own_layers(op: Any, call: dict[str, Any]) -> bool:
    """Whether a network is one of layers on the CPU, all of one dtype. They have no formula for
    forward mode.
    """
    x = call["input"]
    if "batch_sizes" in call or op.overloadpacket is aten.lstm or x.numel() == 0:
        return False
    if torch.is_autocast_enabled("cpu") or not x.is_floating_point():
        return False
    return all(
        each.device.type == "cpu" and each.dtype is x.dtype and unpack_dual(each).tangent is None
        for each in (x, *_states(call), *call["params"])
    )


def _own_layers(call: dict[str, Any], kind: str) -> Any:
    """One call per layer, with both directions."""
    batch_first, directions, hx = call["batch_first"], 1 + call["bidirectional"], call["hx"]
    x = call["input"].transpose(0, 1) if batch_first else call["input"]
    rows = call["num_layers"] * directions
    if hx.shape[0] != rows:
        raise RuntimeError(f"{kind}: {hx.shape[0]} states for {rows} layers and directions")
    values = (x, hx, *call["params"])
    train = torch.is_grad_enabled() and any(value.requires_grad for value in values)
    count, ends = 4 if call["has_biases"] else 2, []
    for layer in range(call["num_layers"]):
        gates, weights, biases = [], [], []
        # autograd takes the last first, so hooks of parameters run in eager's order
        for i in range(layer * directions, (layer + 1) * directions):
            inputs, states, *both = call["params"][i * count :][:count]
            gate = torch.nn.functional.linear(x, inputs, *both[:1])
            gates.append(gate.flip(0) if i % directions else gate)
            weights.append(states[None])
            biases += [bias[None] for bias in both[1:]]
        output, _ = RECURRENT_LAYER(
            torch.stack(gates, 1), hx.narrow(0, layer * directions, directions),
            torch.cat(weights), torch.cat(biases) if biases else None, kind, train,
        )  # fmt: skip
        ends.append(output[-1])
        x = output[:, 0]
        if directions > 1:
            x = torch.cat((x, output[:, 1].flip(0)), -1)
    return (x.transpose(0, 1) if batch_first else x, torch.cat(ends))
