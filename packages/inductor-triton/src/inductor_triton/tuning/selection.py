"""Chooses configurations by measurement: compiles them in parallel, times them one after the other,
and stores the choices as readable text.

A choice is keyed by the kernel's text, with its sizes rounded to powers of two, and the GPU's name.
It is looked up in the lock file, if there is one, then in the artifact store, and measured if
neither has it. A configuration that does not compile or runs out of memory is skipped; the default
stays unless another is faster by more than the noise.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import torch
from loopir import (
    ArtifactStore,
    BuildError,
    Kernel,
    KernelSource,
    Template,
    format_any,
    optional_files,
)

from inductor_triton.kernels.heuristics import next_power_of_two
from inductor_triton.kernels.tiling import hint
from inductor_triton.products.product import product_of
from inductor_triton.spec import Config, format_config, parse_config

from .candidates import candidates

FORMAT = "tuning 1"
MARGIN = 0.03
"""A configuration replaces the default only if it is faster by more than this share: less is noise.
"""
QUICK, CAREFUL, FINALISTS = 5, 15, 3
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
AGAINST, ONE_LAUNCH, LIBRARY = "against the library", "one launch", "library"
Generate = Callable[[Kernel | Template, Config], KernelSource]


class Bench(Protocol):
    """Builds and times sources on a device."""

    name: str

    def compile(self, source: KernelSource) -> None:
        """Puts the source's machine code into the store; called from several threads. Raises
        BuildError.
        """
        ...

    def time(self, source: KernelSource, repeats: int) -> float:
        """Median microseconds of a launch."""
        ...


class TuningWarning(UserWarning):
    """A kernel could not be tuned; it keeps the default configuration."""


@dataclass(slots=True)
class Tuner:
    """Finds the configuration of each kernel.

    ``lock``: a file of choices that are used without measuring; new ones are added.
    ``progress(done, total, what)`` is called as kernels are measured.
    """

    store: ArtifactStore
    bench: Bench
    generate: Generate
    lock: Path | None = None
    progress: Callable[[int, int, str], None] = lambda done, total, what: None
    threads: int = 8
    _locked: dict[str, Config | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lock is not None and self.lock.exists():
            self._locked = read_lock(self.lock.read_text())

    def choose(self, kernels: Sequence[Kernel | Template]) -> list[Config | None]:
        """The configuration of each kernel; None if the default is as good as any."""
        result = []
        for number, kernel in enumerate(kernels):
            self.progress(number, len(kernels), kernel.name)
            result.append(self._choice(kernel))
        self.progress(len(kernels), len(kernels), "")
        return result

    def _choice(self, kernel: Kernel | Template) -> Config | None:
        name = f"{self.bench.name}/{shape_class(kernel)}"
        locked = self._locked.get(name)
        config = locked if isinstance(locked, Config) else self._stored(name)
        if config is None:
            config = self._measured(kernel, name)
        if config is not None:
            self._keep(name, config)
        return config

    def _keep(self, name: str, choice: Config | str) -> None:
        """Adds a choice to the lock file."""
        if self.lock is not None and self._locked.get(name) != choice:
            self._locked[name] = choice
            with optional_files("the lock file of tuning (the option 'tuning_lock')"):
                self.lock.write_text(format_lock(self._locked))

    def against_library(self, template: Template, library_time: Callable[[], float]) -> str:
        """Why a library product with separate kernels is better, according to the lock file, the
        store, or a measurement; empty if a single launch is faster by more than the noise.
        """
        name = f"{self.bench.name}/{shape_class(template)} {AGAINST}"
        key = self.store.key(FORMAT, name)
        known, stored = self._locked.get(name), self.store.get(key, ".txt")
        verdict = (
            known if isinstance(known, str) else None if stored is None else stored.read_text()
        )
        if verdict is None:
            verdict = self._verdict(template, library_time)
            self.store.put(key, ".txt", verdict.encode())
        self._keep(name, verdict)
        return "" if verdict.startswith(ONE_LAUNCH) else verdict

    def _verdict(self, template: Template, library_time: Callable[[], float]) -> str:
        try:
            (config,) = self.choose([template])
            if config is None:
                return f"{LIBRARY}: one launch could not be measured"
            ours, theirs = self.bench.time(self.generate(template, config), CAREFUL), library_time()
        except (*OUT_OF_MEMORY, BuildError) as error:
            return f"{LIBRARY}: measuring failed, {type(error).__name__}"
        faster = ONE_LAUNCH if ours < (1 - MARGIN) * theirs else LIBRARY
        return f"{faster}: one launch takes {ours:.1f} us, the library and kernels {theirs:.1f} us"

    def _stored(self, name: str) -> Config | None:
        found = self.store.get(self.store.key(FORMAT, name), ".txt")
        if found is None:
            return None
        chosen = [line for line in found.read_text().splitlines() if line.endswith("  chosen")]
        if chosen:
            return parse_config(chosen[0].split(" us  ")[1].removesuffix("  chosen"))
        return None

    def _measured(self, kernel: Kernel | Template, name: str) -> Config | None:
        options = candidates(kernel)
        sources = {
            config: source
            for config, source in zip(options, self._compiled(kernel, options))
            if source is not None
        }
        times: dict[Config, float] = {}
        for config, source in sources.items():
            self._time(config, source, QUICK, times)
        if not times:
            warnings.warn(
                f"{kernel.name}: no configuration could be measured; the default stays",
                TuningWarning,
                stacklevel=2,
            )
            return None
        for config in sorted(times, key=times.__getitem__)[:FINALISTS]:
            self._time(config, sources[config], CAREFUL, times)
        default = options[0]
        if default in times:
            self._time(default, sources[default], CAREFUL, times)
        best = min(times, key=times.__getitem__)
        if default in times and times[best] > (1 - MARGIN) * times[default]:
            best = default
        text = report(kernel, self.bench.name, times, best)
        self.store.put(self.store.key(FORMAT, name), ".txt", text.encode())
        return best

    def _compiled(
        self, kernel: Kernel | Template, options: Sequence[Config]
    ) -> list[KernelSource | None]:
        def one(config: Config) -> KernelSource | None:
            try:
                source = self.generate(kernel, config)
                self.bench.compile(source)
            except BuildError:
                return None
            return source

        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(one, options))

    def _time(
        self, config: Config, source: KernelSource, repeats: int, times: dict[Config, float]
    ) -> None:
        try:
            times[config] = self.bench.time(source, repeats)
        except (*OUT_OF_MEMORY, BuildError):
            times.pop(config, None)


def shape_class(kernel: Kernel | Template) -> str:
    """The class of a kernel. Kernels of one class share a choice: they have the same text and
    precision, and the same run-time sizes rounded up to powers of two.
    """
    sizes = ", ".join(f"{name}={next_power_of_two(hint(kernel, name))}" for name in kernel.sizes)
    text = format_any(replace(kernel, name="kernel", origins=(), hints=()))
    found = product_of(kernel) if isinstance(kernel, Template) else None
    tf32 = " tf32" if found is not None and found.tf32 else ""
    return f"{sha256(text.encode()).hexdigest()[:16]}{tf32}" + (f" ({sizes})" if sizes else "")


def format_lock(choices: dict[str, Config | str]) -> str:
    """The text of a lock file."""
    texts = {
        name: choice if isinstance(choice, str) else format_config(choice)
        for name, choice in choices.items()
    }
    return "".join(f"{name}: {text}\n" for name, text in sorted(texts.items()))


def read_lock(text: str) -> dict[str, Config | str]:
    """The choices of a lock file. Raises ValueError with the line that can't be read."""
    found: dict[str, Config | str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, separator, config = line.partition(": ")
        try:
            if not separator:
                raise ValueError("no ': ' in it")
            found[name] = config if name.endswith(AGAINST) else parse_config(config)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"line {number} of the lock file is no choice: {line!r} ({error})"
            ) from error
    return found


def report(kernel: Kernel | Template, device: str, times: dict[Config, float], best: Config) -> str:
    """A text of the measurements, fastest first."""
    lines = [f"{kernel.name} on {device}: {', '.join(name for name, _ in kernel.origins)}"]
    for config, time in sorted(times.items(), key=lambda item: item[1]):
        lines.append(
            f"{time:10.2f} us  {format_config(config)}" + ("  chosen" if config == best else "")
        )
    return "\n".join(lines) + "\n"


def median(samples: Sequence[float]) -> float:
    """The median of the faster three quarters: interruptions only make launches slower."""
    return statistics.median(sorted(samples)[: max(1, 3 * len(samples) // 4)])
