"""Compilers for tests of compiled modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import bytecode_dynamo
import pytest
import torchstrata

from integration_tests.repros.compiled_modules import Backend


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture(params=["bytecode_dynamo", "torchstrata"])
def compiler(request: pytest.FixtureRequest, backend: Backend) -> Callable[..., Any]:
    if request.param == "torchstrata":
        return functools.partial(torchstrata.compile, backend=backend)
    return lambda module, **options: bytecode_dynamo.optimize(backend, **options)(module)
