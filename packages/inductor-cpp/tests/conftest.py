"""Shared fixtures: a store of the session, toolchains per instruction set, and the comparison with
loopir's evaluator.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from inductor_cpp import CppCodeGenerator, find_toolchain
from inductor_cpp.building.toolchain import FEATURES, available_isas, detect_features
from loopir import ArtifactStore, Kernel, evaluate_kernel, parse_kernel

sys.path.insert(0, str(Path(__file__).parent))

from emulated import emulated_generator

EMULATED = {"neon": (), "neon-extended": tuple(FEATURES["neon"])}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@dataclass
class Case:
    """One kernel with its inputs; outputs are filled with ``fill`` before each run."""

    kernel: Kernel
    tensors: list[torch.Tensor]
    sizes: Sequence[int] = ()
    label: str = ""
    rtol: float | None = None
    atol: float = 0.0

    def fresh(self) -> list[torch.Tensor]:
        """The tensors of one launch: inputs as they are, written buffers as copies."""
        return [
            t if b.role == "in" else t.clone()
            for b, t in zip(self.kernel.buffers, self.tensors, strict=True)
        ]


@dataclass
class Harness:
    """Builds many kernels at once and compares each with the evaluator."""

    store: ArtifactStore
    generator: CppCodeGenerator
    cases: list[Case] = field(default_factory=list)

    def add(self, text: str, *tensors: torch.Tensor, sizes: Sequence[int] = (), **options) -> None:
        """Adds a kernel, given as text, to the next comparison."""
        kernel = parse_kernel(text)
        self.cases.append(Case(kernel, list(tensors), sizes, options.pop("label", text), **options))

    def build(self, *kernels: Kernel):
        """Callables of ``kernels``."""
        return self.generator.build(
            [self.generator.generate(kernel) for kernel in kernels], self.store
        )

    def compare(self) -> None:
        """Runs all added cases; fails with the list of those that differ."""
        cases, self.cases = self.cases, []
        wrong = []
        for case, launch in zip(cases, self.build(*(case.kernel for case in cases)), strict=True):
            expected, actual = case.fresh(), case.fresh()
            evaluate_kernel(case.kernel, expected, case.sizes)
            launch(*actual, *case.sizes)
            wrong += [f"{case.label}\n{problem}" for problem in differences(case, expected, actual)]
        assert not wrong, f"{len(wrong)} of {len(cases)} differ:\n" + "\n".join(wrong[:8])


def differences(case: Case, expected: list[torch.Tensor], actual: list[torch.Tensor]) -> list[str]:
    """Descriptions of the written buffers that differ."""
    found = []
    for buffer, e, a in zip(case.kernel.buffers, expected, actual, strict=True):
        if buffer.role == "in":
            continue
        if e.dtype.is_floating_point:
            rtol = TOLERANCE[e.dtype] if case.rtol is None else case.rtol
            good = torch.isclose(
                e.double(), a.double(), rtol=rtol, atol=max(case.atol, 3e-45), equal_nan=True
            )
        else:
            good = e == a
        if not bool(good.all()):
            at = (~good).nonzero()[:4].tolist()
            found.append(
                f"{buffer.name} at {at}: expected {e[~good][:4].tolist()}, got "
                f"{a[~good][:4].tolist()}"
            )
    return found


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> ArtifactStore:
    """One store for the whole session."""
    return ArtifactStore(tmp_path_factory.mktemp("store") / "artifacts")


# the best that there is and plain C++ stand for them in the default suite
BETWEEN = available_isas()[1:-1]
ISAS = [isa for isa in (*available_isas(), "neon") if isa not in BETWEEN]
ISAS += [pytest.param(isa, marks=pytest.mark.slow) for isa in (*BETWEEN, "neon-extended")]


@pytest.fixture(scope="session", params=ISAS)
def any_isa(request, tmp_path_factory) -> CppCodeGenerator:
    """A generator for each instruction set that this processor has or an emulator can do."""
    if request.param in EMULATED:
        return emulated_generator(tmp_path_factory.mktemp(request.param), EMULATED[request.param])
    return CppCodeGenerator(
        dataclasses.replace(
            find_toolchain(), isa=request.param, features=detect_features(request.param)
        )
    )


@pytest.fixture
def harness(store) -> Harness:
    """Comparison on the best instruction set."""
    return Harness(store, CppCodeGenerator())


@pytest.fixture
def harness_any(store, any_isa) -> Harness:
    """Comparison on every instruction set."""
    return Harness(store, any_isa)
