"""Which code is captured, inlined or left alone, by file and by mark."""

from __future__ import annotations

import os
import sysconfig
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import symshapes

from bytecode_dynamo.errors import GraphBreak
from bytecode_dynamo.trace import TORCH_ROOT

DISABLED = "_bytecode_dynamo_disabled"
_PACKAGE = Path(__file__).parents[1]
_OWN_ROOTS = (str(_PACKAGE) + os.sep, str(Path(symshapes.__file__).parent) + os.sep)
_POLYFILLS = tuple(
    str(_PACKAGE / "polyfills" / name)
    for name in (
        "collectives.py",
        "control_flow.py",
        "distributed_tensors.py",
        "exception_groups.py",
        "iterators.py",
        "library.py",
        "nested.py",
        "nested_attention.py",
    )
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = (sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep)
# Parts of torch that are ordinary Python around tensors; frames of the rest run as they are.
_TORCH_CAPTURED = tuple(
    TORCH_ROOT + part
    for part in (
        "nn/modules/",
        "nn/utils/",
        "nn/parallel/",
        "optim/",
        "distributions/",
        "utils/checkpoint.py",
        "ao/nn/",
    )
)
_TORCH_OPAQUE = tuple(
    TORCH_ROOT + part
    for part in (
        "serialization.py", "_tensor_str.py", "cuda/", "distributed/", "multiprocessing/", "jit/",
        "fx/", "hub.py",
        "autograd/function.py", "autograd/__init__.py", "profiler/", "testing/", "_dynamo/",
        "_inductor/", "_functorch/",
        "export/", "onnx/", "package/", "storage.py", "library.py",
        "utils/data/dataloader.py", "utils/data/datapipes/", "utils/data/graph",
        # sparse tensors, or control flow that depends on data
        "optim/lbfgs.py", "optim/sparse_adam.py", "optim/_functional.py",
    )
)  # fmt: skip
# Evaluated although in an opaque part: graphs should contain its calls.
_TORCH_INLINED = (
    TORCH_ROOT + "distributed/_functional_collectives.py",
    TORCH_ROOT + "distributed/tensor/_api.py",
    TORCH_ROOT + "distributed/tensor/_utils.py",
    TORCH_ROOT + "distributed/tensor/parallel/style.py",
    TORCH_ROOT + "distributed/tensor/placement_types.py",
    TORCH_ROOT + "fx/_pytree.py",
)
# Standard library code that is worth evaluating when it is inlined.
_NOT_INLINED = (
    "logging",
    "threading",
    "multiprocessing",
    "subprocess",
    "asyncio",
    "unittest",
    "importlib",
    "warnings",
    "inspect",
)
_INLINED_CLASSES = ("Signature.", "Parameter.", "BoundArguments.")  # of inspect
_NOT_CAPTURED_PACKAGES = (
    "numpy",
    "pytest",
    "_pytest",
    "hypothesis",
    "pluggy",
    "sympy",
    "networkx",
    "triton",
)


@lru_cache(maxsize=10_000)
def is_captured_file(filename: str) -> bool:
    """Whether frames of a file are captured when they are called natively."""
    if filename.startswith("<frozen") or filename.startswith(_OWN_ROOTS):
        return False
    if filename.startswith(TORCH_ROOT):
        return filename.startswith(_TORCH_CAPTURED) and not filename.startswith(_TORCH_OPAQUE)
    for site in _SITE:
        if filename.startswith(site):
            return filename[len(site) :].split(os.sep)[0] not in _NOT_CAPTURED_PACKAGES
    return not filename.startswith(_STDLIB)


def is_own_file(filename: str) -> bool:
    """Whether a file belongs to these packages."""
    return filename.startswith(_OWN_ROOTS)


def is_disabled(function: Any) -> bool:
    """Whether ``disable`` marked a function."""
    return bool(getattr(function, "__dict__", None)) and DISABLED in function.__dict__


def check_inlining(function: types.FunctionType) -> None:
    """Break the graph at functions that must not be inlined."""
    if function.__dict__ and DISABLED in function.__dict__:
        reason = function.__dict__[DISABLED]
        why = f" ({reason})" if isinstance(reason, str) else ""
        raise GraphBreak("BD010", f"call of {function.__qualname__}, which is disabled{why}")
    filename = function.__code__.co_filename
    if filename.startswith(_STDLIB) and not filename.startswith(_SITE):
        module = filename[len(_STDLIB) :].split(os.sep)[0].removesuffix(".py")
        if module in _NOT_INLINED and not function.__qualname__.startswith(_INLINED_CLASSES):
            id_ = "BD003" if module in ("logging", "warnings") else "BD002"
            raise GraphBreak(id_, f"call of {function.__module__}.{function.__qualname__}")
        return
    if filename.startswith(_TORCH_OPAQUE) and filename not in _TORCH_INLINED:
        raise GraphBreak("BD018", f"call of {function.__module__}.{function.__qualname__}")
    if filename.startswith(_OWN_ROOTS) and filename not in _POLYFILLS:
        raise GraphBreak("BD002", f"call of {function.__module__}.{function.__qualname__}")
    for site in _SITE:
        if (
            filename.startswith(site)
            and filename[len(site) :].split(os.sep)[0] in _NOT_CAPTURED_PACKAGES
        ):
            raise GraphBreak("BD005", f"call of {function.__module__}.{function.__qualname__}")
