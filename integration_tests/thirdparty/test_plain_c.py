"""Somebody else's code generator: the conformance kit passes it, and whole models run through
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aotgrad
import bytecode_dynamo
import loopir
import pytest
import torch
from loopir.testing import check_code_generator

from integration_tests.models.zoo import ZOO
from integration_tests.rule import assert_by_rule, to_double
from integration_tests.thirdparty.plain_c import PlainCGenerator


def test_the_generator_is_small() -> None:
    text = Path(__file__).with_name("plain_c.py").read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) < 300


def test_it_conforms() -> None:
    assert check_code_generator(PlainCGenerator()).passed > 300


def stack(module: torch.nn.Module) -> Any:
    """The whole stack with this generator in the place of the package's own."""

    def compile_(graph: torch.fx.GraphModule, inputs: Any) -> loopir.HostProgram:
        return loopir.compile_graph(
            graph, inputs, codegens={"cpu": PlainCGenerator()}, options=loopir.Options(check=True)
        )

    return bytecode_dynamo.optimize(
        aotgrad.aot_backend(compile_, compile_, inference_compiler=compile_)
    )(module)


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
@pytest.mark.parametrize("training", [False, True])
def test_models_run_through_it(name: str, training: bool) -> None:
    torch.manual_seed(0)
    entry = next(entry for entry in ZOO if entry.name == name)
    module, inputs = entry.build().train(training), entry.inputs(2)
    exact_module, exact_inputs = to_double(module), to_double(inputs)
    with torch.set_grad_enabled(training):
        exact, eager = exact_module(*exact_inputs), module(*inputs)
        result = stack(module)(*inputs)
    assert_by_rule(result, eager, exact)
    if training:
        parameters = list(module.parameters())
        for computed, reference, precise in zip(
            torch.autograd.grad(result.sum(), parameters, allow_unused=True),
            torch.autograd.grad(eager.sum(), parameters, allow_unused=True),
            torch.autograd.grad(exact.sum(), list(exact_module.parameters()), allow_unused=True),
            strict=True,
        ):
            if reference is not None:
                assert_by_rule(computed, reference, precise, "gradient", eager_error=1e-5)
