"""What is registered for an operator outside torch: the part of it that compilation reads.

Compilation reads an operator's schema, tags, fake kernel and autograd formula. The kernel of a
device runs later, with the program, and is no part of what is compiled, so that it may change.
The functions of ``torch.library.custom_op`` and ``register_fake`` can be read from torch. Only the
dispatcher knows the other kernels that a trace may run, so they have no description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import loopir
import torch
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.simple_registry import singleton
from torch._ops import OpOverload

from .functions import Reached

_LINE = re.compile(
    r"(?P<key>\w+)(\[alias\])?(?P<idle> \(inactive\))?: registered at (?P<file>.*):\d+ ::.*"
)
_OTHER_LINES = ("name:", "schema:", "debug:")
_ALIAS_ANALYSIS = "alias analysis kind:"
_OF_DEVICES = re.compile(
    r"(Quantized|SparseCsr|Sparse|NestedTensor|Mkldnn)?"
    r"(CPU|CUDA|HIP|XPU|MPS|MTIA|HPU|XLA|PrivateUse[123])"
)
_BY_FAKES = ("Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Where a kernel for fakes is, fakes run no other kernel of these."""
_OF_CUSTOM_OP = "/torch/_library/custom_ops.py"
"""Registers kernels that call parts of a ``CustomOpDef``."""
_OF_TRACES = "/aotgrad/tracing/functional_ops.py"
"""Registers kernels for traces: no part of what they meet."""
_PARTS = "_abstract_fn _backward_fn _setup_context_fn _torch_dispatch_fns _vmap_fn _autocast_dtype"


def describe_registrations(op: OpOverload, reached: Reached) -> Iterator[str]:
    """The texts of an operator. ``reached`` gets the functions. Raises Undescribed."""
    name, entry = op.name(), singleton.find(op.name())
    fake, custom = entry.fake_impl.kernel, _custom(op)
    yield f"{name} {op._schema} {sorted(map(str, op.tags))}"
    yield f"fake {reached.text(None if fake is None else fake.func)}"
    yield f"effect {getattr(getattr(entry, 'effect', None), 'effect', None)}"
    yield f"rules {reached.text([*entry.torch_dispatch_rules._data.items()])}"
    yield f"Python's {reached.text({str(key): made for key, made in op.py_kernels.items()})}"
    if custom is not None:
        yield f"custom {reached.text([getattr(custom, part, None) for part in _PARTS.split()])}"
    for line in torch._C._dispatch_dump(name).splitlines():
        if line.startswith(_ALIAS_ANALYSIS):
            yield line
        elif line and not line.startswith(_OTHER_LINES):
            found = _LINE.fullmatch(line)
            if found is None or not _is_known(found, fake is not None, custom is not None):
                raise loopir.Undescribed(f"a kernel of {op}: {line.partition(':')[0]}")
            if not _OF_DEVICES.fullmatch(found["key"]) and not found["file"].endswith(_OF_TRACES):
                yield found["key"]


def _custom(op: OpOverload) -> CustomOpDef | None:
    found: Any = OPDEFS.get(op._schema.name)
    return found if found is not None and found._opoverload is op else None


def _is_known(line: re.Match[str], has_fake: bool, is_custom: bool) -> bool:
    """Whether a kernel is described, or runs later."""
    if line["file"].endswith(_OF_TRACES) or (is_custom and line["file"].endswith(_OF_CUSTOM_OP)):
        return True
    runs_later = _OF_DEVICES.fullmatch(line["key"]) or (has_fake and line["key"] in _BY_FAKES)
    return bool(runs_later) and not line["idle"]
