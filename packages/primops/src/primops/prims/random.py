"""Random prims: counter-based, so that a value depends on seed and position only.

Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
2011), for masks with 7 rounds, the fewest that pass all tests of BigCrush.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from primops.errors import PrimError
from primops.meta import Size, TensorMeta, contiguous
from primops.prim import group

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_CALL = 4
"""How far a call of ``randint`` for one number moves the offset of a CUDA generator."""
_AHEAD_COUNT, _STREAMS = 256, 16
_AHEAD: dict[tuple[int, int], tuple[int, int, tuple[torch.Tensor, ...]]] = {}
"""Of each device and stream: a generator's seed, the number of a call, and the numbers that it and
the next calls draw.
"""
_DRAWING = threading.Lock()


def _random_seed_rule(*, device: torch.device) -> TensorMeta:
    return contiguous((), torch.int64, device)


def _random_seed(*, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        return _drawn_ahead(device)
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


def _drawn_ahead(device: torch.device) -> torch.Tensor:
    """What ``randint`` would draw on the device, without a launch of its own: many of its next
    numbers are there already.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    generator, stream = (
        torch.cuda.default_generators[index],
        torch._C._cuda_getCurrentRawStream(index),
    )
    with _DRAWING:
        key, call = generator.initial_seed(), generator.get_offset() // _CALL
        generator.set_offset((call + 1) * _CALL)
        known = _AHEAD.get((index, stream))
        if known is None or known[0] != key or not 0 <= call - known[1] < _AHEAD_COUNT:
            if len(_AHEAD) >= _STREAMS:
                _AHEAD.clear()
            numbers = seeds_of_calls(key, call, _AHEAD_COUNT).to(
                torch.device("cuda", index), non_blocking=True
            )
            known = _AHEAD[index, stream] = key, call, numbers[:, 0].unbind()
        return known[2][call - known[1]]


def seeds_of_calls(key: int, first: int, count: int) -> torch.Tensor:
    """The int64 numbers that a CUDA generator with the seed ``key`` gives calls of ``randint`` for
    one number: ``count`` calls from number ``first`` on. Each stands twice, so that it begins where
    kernels expect memory to: at a multiple of 16 bytes.
    """
    signed = torch.tensor((key + 2**63) % 2**64 - 2**63)
    high, low, *_ = philox(signed, torch.arange(first, first + count)).unbind(-1)
    bits = (high << 32) | low
    bits = torch.where(bits == -1, 0, bits) ^ -(2**63)  # the remainder by 2**64 - 1, from -2**63 on
    return torch.stack((bits, bits), dim=1)


def _uniform_rule(seed: TensorMeta, *, shape: Sequence[Size], offset: Size) -> TensorMeta:
    if seed.dtype is not torch.int64 or seed.ndim:
        raise PrimError(f"seed is {seed.dtype} {seed.shape}, needs an int64 scalar")
    return contiguous(shape, torch.float32, seed.device)


def _multiply(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of the 64-bit product of 32-bit words held in int64 (which wraps, as
    needed).
    """
    whole = a * b
    return (whole >> 32) & _WORD, whole & _WORD


def philox(
    seed: torch.Tensor, counter: torch.Tensor, stream: int = 0, rounds: int = 10
) -> torch.Tensor:
    """Four 32-bit words (as int64, last dim) per 64-bit counter value, for a 64-bit seed."""
    key = [seed & _WORD, (seed >> 32) & _WORD]
    words = [
        counter & _WORD,
        (counter >> 32) & _WORD,
        torch.full_like(counter, stream),
        torch.zeros_like(counter),
    ]
    for _ in range(rounds):
        high0, low0 = _multiply(words[0], _MULTIPLIERS[0])
        high1, low1 = _multiply(words[2], _MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]
        key = [(word + step) & _WORD for word, step in zip(key, _KEY_STEPS)]
    return torch.stack(words, dim=-1)


def _to_float(words: torch.Tensor) -> torch.Tensor:
    """The top 24 bits as numbers in [0, 1)."""
    return (words >> 8).to(torch.float32) * 2.0**-24


def _uniform(seed: torch.Tensor, *, shape: Sequence[int], offset: int) -> torch.Tensor:
    size = torch.Size(shape)
    position = torch.arange(size.numel(), dtype=torch.int64, device=seed.device) + offset
    words = philox(seed, position // 4).gather(-1, (position % 4).unsqueeze(-1)).squeeze(-1)
    return _to_float(words).reshape(size)


def _uniform16(seed: torch.Tensor, *, shape: Sequence[int], offset: int) -> torch.Tensor:
    size = torch.Size(shape)
    position = torch.arange(size.numel(), dtype=torch.int64, device=seed.device) + offset
    words = (
        philox(seed, position // 8, stream=1, rounds=7)
        .gather(-1, (position % 8 // 2).unsqueeze(-1))
        .squeeze(-1)
    )
    words = torch.where(position % 2 == 1, (words >> 16) | ((words & 0xFFFF) << 16), words)
    return _to_float(words).reshape(size)


_uniform_in = group("random", "random", dtype_rule="float32")
random_seed = group("random", "random", "impure", dtype_rule="int64")(
    "random_seed(*, device)", _random_seed_rule, _random_seed,
    "64 random bits from the device's default generator; a new draw per node",
)  # fmt: skip
uniform = _uniform_in(
    "uniform(seed, *, shape, offset)", _uniform_rule, _uniform,
    "in [0, 1): top 24 bits of lane c % 4 of Philox4x32-10(seed, c // 4), times 2**-24, "
    "for c = offset + position",
)  # fmt: skip
uniform16 = _uniform_in(
    "uniform16(seed, *, shape, offset)", _uniform_rule, _uniform16,
    "in [0, 1), the upper 16 bits its own and the others its neighbour's: top 24 bits of "
    "lane c % 8 // 2 of "
    "Philox4x32-7(seed, c // 8 + 2**64), the halves swapped for odd c, times 2**-24, for c = "
    "offset + position",
)  # fmt: skip
