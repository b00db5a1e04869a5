"""Random operators from counter-based uniform numbers. Other bits than eager draws, the same
distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from primops import prims
from primops.decompositions.creation import Dtype, factory
from primops.meta import Size
from primops.operand import Tensor, elementwise, full_like, to_dtype, widen
from primops.prim import Prim, current_interpreter
from primops.promotion import HALF_DTYPES, is_integral, is_number
from primops.registry import DecompositionTable, Rule
from primops.shapes import broadcast_shapes

rules = DecompositionTable()
INF = float("inf")
_GIVEN: ContextVar[list[Any] | None] = ContextVar("given", default=None)
"""The seed that a rule draws from, and how many numbers it has drawn each time; None: one seed for
the whole graph.
"""


def uniform(
    shape: Sequence[Size],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    prim: Prim = prims.uniform,
) -> Tensor:
    """Random numbers in [0, 1) of a float dtype, as ``prim`` gives them."""
    interpreter, given = current_interpreter(), _GIVEN.get()
    if given is not None:
        value = prim(given[0], shape=tuple(shape), offset=sum(given[1:]))
        given.append(value.numel())
    elif interpreter is not None:
        value = interpreter.uniform(tuple(shape), device, prim)
    else:
        value = prim(prims.random_seed(device=device), shape=tuple(shape), offset=0)
    if dtype in HALF_DTYPES:
        # Cut to the bits that the dtype has, so that nothing rounds up to 1.
        levels = 2.0 / torch.finfo(dtype).eps
        value = prims.div(prims.floor(prims.mul(value, levels)), levels)
    return to_dtype(value, dtype)


def _drawing(*ops: str) -> Callable[[Rule], Rule]:
    """Decorator for a rule that draws real numbers from the default generator; with another one the
    operator stays a call.
    """

    def add(rule: Rule) -> Rule:
        @rules.register(*ops)
        def own(*args: Any, generator: Any = None, **named: Any) -> Any:
            is_complex = getattr(getattr(args[0], "dtype", None), "is_complex", False)
            if generator is not None or is_complex:
                return NotImplemented
            return rule(*args, **named)

        return own

    return add


@factory(rules, "rand")
def rand(size: Sequence[Size], *, dtype: Dtype, device: torch.device) -> Tensor:
    """Uniform in [0, 1)."""
    return uniform(size, device, dtype or torch.get_default_dtype())


factory(rules, "rand_like", like=True)(lambda self, **made: rand(self.shape, **made))


@_drawing("uniform")
def uniform_rule(self: Tensor, low: float = 0.0, high: float = 1.0, **named: float) -> Tensor:
    """Uniform in [low, high)."""
    low, high = named.get("from", low), named.get("to", high)
    drawn = uniform(self.shape, self.device, self.dtype)
    return elementwise(lambda u: prims.add(prims.mul(u, high - low), low), drawn)


@_drawing("bernoulli", "bernoulli.Tensor")
def bernoulli(self: Tensor, p: Tensor | None = None) -> Tensor:
    """1 with the probability that each element gives."""
    chance = widen(self if p is None else p)
    drawn = to_dtype(uniform(self.shape, self.device), chance.dtype)
    return to_dtype(prims.lt(drawn, chance), self.dtype)


def _draws_masks(device: torch.device) -> Prim:
    """On CUDA devices arithmetic is the bound, so there two elements of a mask share a random word:
    each is decided by its own 16 bits, but for one in 65536.
    """
    return prims.uniform16 if device.type == "cuda" else prims.uniform


@rules.register("native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Elements kept with probability ``1 - p`` and scaled by its inverse; also which ones were
    kept.
    """
    if train is False or p == 0:
        return input, full_like(input, True, torch.bool)
    if p == 1:
        return full_like(input, 0), full_like(input, False, torch.bool)
    mask = prims.lt(uniform(input.shape, input.device, prim=_draws_masks(input.device)), 1.0 - p)
    return elementwise(lambda a: prims.where(mask, prims.mul(a, 1.0 / (1.0 - p)), 0), input), mask


derivatives = DecompositionTable()


@derivatives.register("_masked_scale")
def masked_scale(self: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Elements kept by a mask, scaled."""
    return elementwise(lambda a: prims.mul(prims.mul(a, to_dtype(mask, a.dtype)), scale), self)


@derivatives.register("native_dropout_backward")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the input was kept, scaled."""
    is_whole = is_integral(grad_output.dtype)
    return NotImplemented if is_whole else masked_scale(grad_output, mask, scale)


# Other distributions
# --------------------------------------------------------------------------------------------------

WORD = 24  # random bits per uniform number


def standard_normal(shape: Sequence[Size], device: torch.device) -> Tensor:
    """float32 normal numbers, by Box and Muller's transform."""
    radius = prims.sqrt(prims.mul(prims.log(prims.sub(1, uniform(shape, device))), -2.0))
    return prims.mul(radius, prims.cos(prims.mul(uniform(shape, device), 2 * math.pi)))


def integers(low: Size, high: Size, shape: Sequence[Size], device: torch.device) -> Tensor:
    """int64 in [low, high): as many 24-bit draws as keep the bias below 2**-16, reduced modulo the
    range.
    """
    span = high - low
    draws = 3 if not isinstance(span, int) or span > 2**32 else 2 if span > 2**8 else 1
    bits: Any = None
    for _ in range(draws):
        word = prims.convert(prims.mul(uniform(shape, device), float(2**WORD)), dtype=torch.int64)
        bits = word if bits is None else prims.bitwise_xor(prims.shift_left(bits, WORD), word)
    return prims.add(prims.remainder(prims.bitwise_and(bits, 2**63 - 1), span), low)


@factory(rules, "randn", floating=True)
def randn(size: Sequence[Size], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal."""
    return to_dtype(standard_normal(size, device), dtype)


factory(rules, "randn_like", like=True)(lambda self, **made: randn(self.shape, **made))


def _scaled(drawn: Tensor, mean: Any, std: Any) -> Tensor:
    return prims.add(prims.mul(drawn, std), mean)


@factory(rules, "normal.float_float", floating=True)
def normal_numbers(
    mean: float, std: float, size: Sequence[Size], *, generator: Any = None, dtype: torch.dtype,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """Normal."""
    if generator is not None:
        return NotImplemented
    return to_dtype(_scaled(standard_normal(size, device), mean, std), dtype)


@_drawing("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def normal_tensors(mean: Any, std: Any = 1.0) -> Tensor:
    """Normal, with a mean and deviation per element."""
    given = [x for x in (mean, std) if not is_number(x)]
    drawn = standard_normal(broadcast_shapes(*[x.shape for x in given]), given[0].device)
    scaled = elementwise(lambda z, s, m: _scaled(z, m, s), drawn, std, mean)
    return to_dtype(scaled, given[0].dtype)


def _drawn(name: str, transform: Any, source: Callable[..., Tensor] = uniform) -> None:
    """A distribution with numbers as parameters: ``transform(source, *parameters)``."""

    @_drawing(name)
    def rule(self: Tensor, *parameters: float, **named: float) -> Tensor:
        drawn = source(self.shape, self.device)
        return to_dtype(transform(drawn, *parameters, **named), self.dtype)


_drawn("bernoulli.p", lambda u, p=0.5: prims.lt(u, p))
_drawn("exponential", lambda u, lambd=1.0: prims.div(prims.log(prims.sub(1, u)), -lambd))
_drawn("cauchy", lambda u, median=0.0, sigma=1.0: prims.add(
    prims.mul(prims.tan(prims.mul(prims.sub(u, 0.5), math.pi)), sigma), median))  # fmt: skip
_drawn("geometric", lambda u, p: prims.maximum(
    prims.ceil(prims.div(prims.log(prims.sub(1, u)), math.log1p(-p) if p < 1 else -INF)),
    1))  # fmt: skip
_drawn("normal_functional", lambda z, mean=0.0, std=1.0: _scaled(z, mean, std), standard_normal)
_drawn("log_normal", lambda z, mean=1.0, std=2.0: prims.exp(_scaled(z, mean, std)), standard_normal)


@factory(rules, "randint.low")
def randint(
    low: Size, high: Size, size: Sequence[Size], *, dtype: Dtype, device: torch.device
) -> Tensor:
    """Integers in [low, high)."""
    return to_dtype(integers(low, high, size, device), dtype or torch.int64)


rules.register("randint")(lambda high, size, **options: randint(0, high, size, **options))


@factory(rules, "randint_like", "randint_like.low_dtype", like=True)
def randint_like(self: Tensor, *bounds: Size, **options: Any) -> Tensor:
    """Integers in [0, high) or [low, high)."""
    low, high = (0, *bounds)[-2:]
    return randint(low, high, self.shape, **options)


@_drawing("random", "random.to", "random.from")
def random_rule(self: Tensor, *bounds: int | None, **named: int | None) -> Tensor:
    """Integers in [from, to), by default all that the dtype counts exactly."""
    given = [named.pop("from", None), named.pop("to", None)] if named else list(bounds)
    low, high = (0, given[0]) if len(given) == 1 else (given or (0, None))
    if high is None:
        if self.dtype is torch.bool:
            high = 2
        elif self.dtype.is_floating_point:
            high = int(2 / torch.finfo(self.dtype).eps) + 1
        else:
            high = torch.iinfo(self.dtype).max
    return to_dtype(integers(low or 0, high, self.shape, self.device), self.dtype)


@rules.register("_fused_dropout")
def fused_dropout(self: Tensor, p: float, generator: Any = None) -> tuple[Tensor, Tensor]:
    """Elements kept with probability p and scaled by its inverse; the mask as bytes."""
    mask = prims.lt(uniform(self.shape, self.device), p)
    scaled = elementwise(lambda a: prims.where(mask, prims.mul(a, 1.0 / p), 0), self)
    return scaled, to_dtype(mask, torch.uint8)


@rules.register("rrelu_with_noise_functional")
def rrelu_with_noise(
    self: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Tensor, Tensor]:
    """x for positive x, else x times a slope, random in training; also the slopes."""
    if not training:
        slope = (lower + upper) / 2
        result = elementwise(lambda a: prims.where(prims.le(a, 0), prims.mul(a, slope), a), self)
        return result, noise
    drawn = prims.add(prims.mul(uniform(self.shape, self.device), upper - lower), lower)
    slopes = elementwise(
        lambda a, u: prims.where(prims.le(a, 0), u, 1.0), self, to_dtype(drawn, self.dtype)
    )
    return elementwise(prims.mul, self, slopes), slopes


@derivatives.register("rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    grad_output: Tensor, self: Tensor, noise: Tensor,
    lower: float, upper: float, training: bool, self_is_result: bool,
) -> Tensor:  # fmt: skip
    """The gradient times the slopes."""
    if training and upper - lower > 1e-6:
        return elementwise(prims.mul, grad_output, noise)
    slope = (lower + upper) / 2
    return elementwise(
        lambda grad, a: prims.where(prims.gt(a, 0), grad, prims.mul(grad, slope)), grad_output, self
    )


# Random operators as functions of a seed, which aotgrad keeps where backward draws again what
# forward has drawn ---------------

_SEEDED = "aotgrad::seeded_"
MOST_DRAWS = 40  # bits: of numbers that one mask takes


def seeded_mask(seed: Tensor, size: Sequence[Size], keep: float, place: int) -> Tensor:
    """True with probability ``keep``; each place has numbers of its own."""
    draw = _draws_masks(seed.device)
    return prims.lt(draw(seed, shape=tuple(size), offset=place << MOST_DRAWS), keep)


def seeded_rule(name: str, table: DecompositionTable) -> Callable[..., Any] | None:
    """The rules of ``aotgrad::random_seed`` and ``seeded_mask``, and of ``seeded_<op>`` when
    ``table`` has one of ``op``.
    """
    if name == "aotgrad::random_seed":
        return lambda device: prims.random_seed(device=device)
    if name == "aotgrad::seeded_mask":
        return seeded_mask
    rule = table.get(name.removeprefix(_SEEDED)) if name.startswith(_SEEDED) else None
    if rule is None:
        return None

    def from_seed(seed: Tensor, *args: Any, **kwargs: Any) -> Any:
        token = _GIVEN.set([seed])
        try:
            return rule(*args, **kwargs)
        finally:
            _GIVEN.reset(token)

    return from_seed
