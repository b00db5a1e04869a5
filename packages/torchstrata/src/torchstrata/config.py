"""Every setting of the stack in one typed, documented place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from symshapes.suggestion import did_you_mean

from .errors import UsageError

Fallback = Literal["eager", "error"]
Partition = Literal["min_cut", "default"]
Numerics = Literal["fast", "eager"]
Verify = bool | float | Literal["contracts"]


@dataclass(slots=True)
class Config:
    """Settings for compiling graphs; ``compile(options={...})`` overrides them for one callable."""

    fallback: Fallback = "eager"
    """On a compiler failure: run eagerly with one warning, or raise CompileError."""
    fallback_random: bool = False
    """Draw random numbers exactly like eager, instead of with our counter-based generator."""
    partition: Partition = "min_cut"
    """What forward saves for backward: the cheapest cut, or everything that backward reads."""
    activation_memory_budget: float = 1.0
    """The share of ``min_cut``'s saved bytes to keep, 0 to 1; below 1, layers are recomputed."""
    numerics: Numerics = "fast"
    """Keep float32 between bfloat16 operations in a kernel, and scale a loss's gradients last; or
    round as eager does.
    """
    freeze: bool = False
    """Under ``torch.no_grad()``: parameters and buffers are constants, folded and packed; later
    changes of them go unseen.
    """
    patterns: bool = True
    """Replace operators by faster calls (one attention, packed convolutions, padded products), or
    call the program's.
    """
    fusion: bool = True
    """Merge loops that share data into one kernel, or a kernel for each operation."""
    inlining: bool = True
    """Compute cheap values again where they are read, instead of storing them."""
    loop_order: bool = True
    """Order the loops of a kernel by the strides of what it reads and writes."""
    layouts: bool = True
    """Channels-last convolutions where that is faster (needs ``patterns``)."""
    templates: bool = True
    """Products and convolutions may be our own kernels, with the loops around them; else library
    calls.
    """
    vectorisation: bool = True
    """Kernels compute several points at once; else one by one, as far as the compiler lets them."""
    split_reductions: bool = True
    """Large reductions to few results run in two stages, in parallel."""
    memory_reuse: bool = True
    """Results that are no longer needed give their memory to later ones."""
    blocks: bool = True
    """Compile equal parts of a graph, such as the layers of a transformer, once; on the CPU."""
    cuda_graphs: bool = True
    """Record programs for one CUDA device as CUDA graphs and replay them where that is safe; costs
    memory for their results.
    """
    cuda_graph_copies: int = 32 << 20
    """Bytes of moving inputs, and of results that callers keep, that a replay may copy. Unless this
    is lowered, a program of many library calls may copy more of inputs that keep moving.
    """
    cuda_graph_memory: float = 0.5
    """The share of the device's memory, 0 to 1, that all recordings together may take; beyond it
    programs run launch by launch.
    """
    keep_frames: bool = True
    """Keep what capture makes of a function in the cache, too: the next process checks it against
    its own objects instead of capturing again.
    """
    tune: bool = False
    """Choose configurations of CUDA kernels, and templates or the library for matrix products, by
    measuring them.
    """
    tuning_lock: str | None = None
    """A file with the choices of ``tune``: what is in it is taken without measuring, what is
    measured is added.
    """
    lock: str | None = None
    """A TOML file with every choice that a measurement or a rule of thumb makes, by graph: what is
    in it is repeated, what is new is added. See the guide on reproducible builds.
    """
    compile_seconds: float | None = None
    """Seconds of compilation after which the rest of a callable's graphs get cheaper schedules."""
    verify: Verify = "contracts" if os.environ.get("STRATA_VERIFY") == "1" else False
    """Compare the results of all stages, each against the one before, at this share of the calls
    (``0.01``), or at every call and check each stage's contract, too (True; a difference is then an
    error). "contracts" (STRATA_VERIFY=1): only check the contracts, while compiling.
    """
    dump: str | None = os.environ.get("STRATA_DUMP")
    """Directory for a readable text of every stage (STRATA_DUMP=dir)."""
    cache_dir: str | None = os.environ.get("STRATA_CACHE_DIR")
    """Where compiled kernels are kept; None is the user's cache directory (STRATA_CACHE_DIR=dir).
    """

    def __setattr__(self, name: str, value: object) -> None:
        _check_field(name, value)
        object.__setattr__(self, name, value)

    def with_options(self, options: Mapping[str, Any] | None) -> Config:
        """Returns a copy with ``options`` applied. Raises UsageError for a wrong name or value."""
        for name, value in (options or {}).items():
            _check_field(name, value)
        return replace(self, **dict(options or {}))

    @property
    def checks(self) -> bool:
        """Whether each stage's contract is checked."""
        return self.verify is True or self.verify == "contracts"

    @property
    def compares(self) -> bool:
        """Whether results of stages are compared, at some calls or all."""
        return self.verify is True or (type(self.verify) is float and self.verify > 0)

    def compile_settings(self) -> tuple[object, ...]:
        """The values of all fields that a compiled graph depends on."""
        return tuple(getattr(self, name) for name in _FIELDS if name not in _WITHOUT_EFFECT)

    def saved(self) -> dict[str, Any]:
        """The settings that a saved program is compiled with again."""
        return {name: getattr(self, name) for name in _FIELDS if name not in _OF_PROCESS}

    @contextmanager
    def patch(self, **options: Any) -> Iterator[None]:
        """Applies ``options`` within a ``with`` block."""
        before = {name: getattr(self, name) for name in options if name in _FIELDS}
        try:
            for name, value in options.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


_WITHOUT_EFFECT = ("cache_dir", "compile_seconds", "keep_frames", "lock")
"""Settings that a graph does not depend on; one compiled beyond the budget is not cached, and the
key has what the lock file knows of a graph.
"""
_OF_PROCESS = (
    *("cache_dir", "compile_seconds", "dump", "fallback", "keep_frames", "lock", "tuning_lock"),
    "verify",
)
_REFUSED = {
    "guard_filter_fn": "guards can't be left out: a graph would run where it is wrong, and "
    "checking all of them takes about a microsecond; ",
}
"""Options of torch.compile that there can't be, with the reason."""
_FIELDS = tuple(field.name for field in fields(Config))
_TYPES = get_type_hints(Config)


def _check_field(name: str, value: object) -> None:
    if name not in _FIELDS:
        raise UsageError(
            f"unknown option {name!r}; {_REFUSED.get(name) or did_you_mean(name, _FIELDS)}the "
            f"options are {', '.join(_FIELDS)}"
        )
    choices = get_args(_TYPES[name])
    if _TYPES[name] == Verify:
        is_share = type(value) is float and 0 <= value <= 1
        valid = is_share or type(value) is bool or value == "contracts"
        expected = "True, False, 'contracts', or a share of the calls such as 0.01"
    elif _TYPES[name] is float:
        valid, expected = type(value) in (int, float) and 0 <= value <= 1, "a number from 0 to 1"  # type: ignore[operator]
    elif float in choices:
        valid = value is None or (type(value) in (int, float) and value >= 0)  # type: ignore[operator]
        expected = "a number from 0 on, or None"
    elif not choices:
        valid, expected = type(value) is _TYPES[name], _TYPES[name].__name__
    elif str in choices:
        valid, expected = value is None or isinstance(value, str), "a string or None"
    else:
        valid, expected = value in choices, " or ".join(map(repr, choices))
    if not valid:
        raise UsageError(f"option {name!r} is {value!r}; it must be {expected}")


def parse_options(text: str) -> dict[str, Any]:
    """Options as STRATA_OPTIONS has them: ``"fusion=off,partition=default"``. A bool is on or off,
    true or false, 1 or 0; None is ``none``. Raises UsageError.
    """
    options = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"{item!r} is no option: write NAME=VALUE, such as fusion=off")
        options[name] = _read(name, value)
    return options


def _read(name: str, text: str) -> object:
    """The value of an option from its text; one that can't be is left for ``_check_field``."""
    kind = _TYPES.get(name)
    if kind is bool or (kind == Verify and text.lower() in _BOOLS):
        return _BOOLS.get(text.lower(), text)
    number = float if float in get_args(kind) else kind
    if number in (int, float):
        with suppress(ValueError):
            return number(text)
    return None if text.lower() == "none" and type(None) in get_args(kind) else text


def _from_environment() -> Config:
    try:
        return Config().with_options(parse_options(os.environ.get("STRATA_OPTIONS", "")))
    except UsageError as error:
        raise UsageError(f"STRATA_OPTIONS: {error}") from None


_BOOLS = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
config = _from_environment()
"""The settings of this process; STRATA_OPTIONS changes what they are at first."""
