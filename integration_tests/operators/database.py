"""torch's operator database, importable with torch alone."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from collections.abc import Sequence
from typing import Any

if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
    # The database's module imports it as a base of torch's own test classes, which nothing here uses.
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

from torch.testing._internal.common_methods_invocations import op_db


def full_name(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators(names: Sequence[str] = ()) -> list[Any]:
    """Entries of the database in order, all or those of the given full names."""
    return [op for op in op_db if not names or full_name(op) in names]
