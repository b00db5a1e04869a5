"""Code generators by choice, by registration and by entry point, and what is said of bad ones."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bytecode_dynamo
import loopir
import pytest
import torch
import torchstrata
from loopir.testing import EvaluatorCodeGenerator
from torchstrata.__main__ import backends


class Counting:
    """The evaluator, counting its kernels: no more than a generator needs."""

    device = "cpu"
    generated = 0

    def generate(self, kernel: loopir.Kernel) -> loopir.KernelSource:
        Counting.generated += 1
        return EvaluatorCodeGenerator().generate(kernel)

    def build(self, sources: Any, store: Any) -> Any:
        return EvaluatorCodeGenerator().build(sources, store)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).sum(0)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    Counting.generated = 0
    yield
    loopir.unregister_code_generator("cpu")
    torchstrata.reset()


def install(
    directory: Path, name: str, points: dict[str, str], group: str = "code_generators"
) -> None:
    """A distribution that offers ``points``, as pip leaves it on the path."""
    info = directory / f"{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    lines = [f"{key} = {value}" for key, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[torchstrata.{group}]", *lines]) + "\n")


def test_a_call_chooses_its_generator() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    compiled = torchstrata.compile(program, codegens={"cpu": Counting()}, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x))
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(gradient, 2 * x.cos())
    assert Counting.generated == 2
    torchstrata.compile(program)(x)
    assert Counting.generated == 2


def test_a_registered_generator_comes_before_the_default() -> None:
    loopir.register_code_generator("cpu", Counting)
    loopir.register_code_generator("cpu", Counting)  # the same again is none of two
    x = torch.randn(4, 5)
    torch.testing.assert_close(torchstrata.compile(program, fullgraph=True)(x), program(x))
    assert Counting.generated == 1
    own = torchstrata.compile(program, fullgraph=True, codegens={"cpu": "cpp"})
    torch.testing.assert_close(own(x), program(x))
    assert Counting.generated == 1
    with pytest.raises(loopir.GeneratorError, match="two code generators for device 'cpu'.*Count"):
        loopir.register_code_generator("cpu", EvaluatorCodeGenerator)


def test_an_installed_generator_is_chosen_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "counting", {"counting": f"{__name__}:Counting", "broken": "no_module:X"})
    monkeypatch.syspath_prepend(tmp_path)
    x = torch.randn(4, 5)
    compiled = torchstrata.compile(program, codegens={"cpu": "counting"}, fullgraph=True)
    torch.testing.assert_close(compiled(x), program(x))
    assert Counting.generated == 1
    for name, message in {
        "broken": r"'broken' \(counting 1.5, no_module:X\) can't be loaded: ModuleNotFoundError",
        "other": r"no code generator is called 'other'; installed are: 'broken' .*'counting'",
    }.items():
        with pytest.raises(torchstrata.UsageError, match=message):
            torchstrata.compile(program, codegens={"cpu": name})
    listed = {found.name: found for found in torchstrata.list_code_generators()}
    assert listed["counting"].origin == f"counting 1.5, {__name__}:Counting"
    assert listed["cpp"].device == "cpu" and listed["broken"].problem
    lines = {line.split()[0]: line for line in backends(check=False)}
    assert "cpu" in lines["cpp"] and "can't be loaded" in lines["broken"] and "eager" in lines


def test_a_device_takes_the_only_generator_installed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {"first": f"{__name__}:for_toys", "broken": "no_module:X"}
    install(tmp_path, "toys", points)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(loopir.GeneratorWarning, match="'broken'.*no_module"):
        found = loopir.code_generators({"toy", "other"})
    assert found["toy"].device == "toy" and set(found) == {"toy"}
    install(tmp_path, "blocks", {"second": f"{__name__}:for_toys"})
    with (
        pytest.warns(loopir.GeneratorWarning),
        pytest.raises(loopir.GeneratorError, match=r"'first' \(toys 1.5.* and 'second' \(blocks"),
    ):
        loopir.code_generators({"toy"})
    (tmp_path / "blocks-1.5.dist-info" / "entry_points.txt").write_text(
        f"[torchstrata.code_generators]\nfirst = {__name__}:Counting\n"
    )
    with pytest.raises(loopir.GeneratorError, match="2 code generators called 'first'"):
        loopir.code_generators((), {"cpu": "first"})


def for_toys() -> EvaluatorCodeGenerator:
    return EvaluatorCodeGenerator("toy")


class Raising(Counting):
    def generate(self, kernel: loopir.Kernel) -> loopir.KernelSource:
        raise KeyError("no such op")


class Garbage(Counting):
    def generate(self, kernel: loopir.Kernel) -> Any:
        return "some text"


class TooFew(Counting):
    def build(self, sources: Any, store: Any) -> Any:
        return []


class Hanging(Counting):
    def build(self, sources: Any, store: Any) -> Any:
        time.sleep(60)


BAD = {
    Raising: "Raising .device 'cpu'. raised when asked to generate kernel .*KeyError: 'no such op'",
    Garbage: "Garbage .device 'cpu'. returned 'some text' from generate for kernel",
    TooFew: "TooFew .device 'cpu'. returned 0 callables from build for 1 kernels",
    Hanging: "Hanging .device 'cpu'. did not build 1 kernels within 0.2 seconds",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_generator_is_named(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchstrata.context.FOREIGN_DEADLINE", 0.2)
    x = torch.randn(4, 5)
    with pytest.raises(bytecode_dynamo.BackendCompilerFailed, match=BAD[kind]):
        torchstrata.compile(program, codegens={"cpu": kind()}, fullgraph=True)(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torchstrata.compile(program, codegens={"cpu": kind()})(x)
    torch.testing.assert_close(result, program(x))
    assert any(issubclass(w.category, torchstrata.FallbackWarning) for w in caught)
    torch.testing.assert_close(torchstrata.compile(program, fullgraph=True)(x), program(x))


@pytest.mark.parametrize(
    "codegens",
    [
        3,
        {1: EvaluatorCodeGenerator()},
        {"cpu": object()},
        {"cuda": EvaluatorCodeGenerator()},
        {"cpu": None},
    ],
)
def test_bad_choices(codegens: Any) -> None:
    with pytest.raises(torchstrata.UsageError, match="codegens|CodeGenerator|for device"):
        torchstrata.compile(program, codegens=codegens)
    with pytest.raises(torchstrata.UsageError, match="belong to the backend"):
        torchstrata.compile(program, backend="eager", codegens={"cpu": EvaluatorCodeGenerator()})
    for device, factory in (("", Counting), (1, Counting), ("cpu", None)):
        with pytest.raises(loopir.GeneratorError):
            loopir.register_code_generator(device, factory)  # type: ignore[arg-type]
