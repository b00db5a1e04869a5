"""The op set's documents, and that no prim changes without a new version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from primops import EXTERN_OPS, OPSET, OPSET_VERSION, ExternPrim, prim_of
from primops.derivatives import describe
from primops.opset import GROUPS, digest
from torch import ops

aten = ops.aten
ROOT = Path(__file__).parents[3]


def test_prim_changes_need_a_new_version():
    kept = json.loads((ROOT / "packages/primops/opset.json").read_text())
    changed = {
        name
        for name in {*OPSET, *kept["prims"]}
        if name not in OPSET or kept["prims"].get(name) != digest(OPSET[name])
    }
    assert not changed or kept["version"] < OPSET_VERSION, (
        f"{changed} changed: raise OPSET_VERSION, run primops_reference.py"
    )


def test_documents_are_up_to_date():
    subprocess.run(
        [sys.executable, str(ROOT / "tools/primops_reference.py"), "--check"], check=True
    )


def test_every_prim_is_documented():
    assert len(OPSET) <= 250
    for prim in OPSET.values():
        assert prim.name in GROUPS[prim.group]
        assert all((prim.schema, prim.meaning, prim.dtype_rule, describe(prim), prim.numerics)), (
            prim
        )


def test_an_overload_spells_one_extern_prim():
    assert prim_of(aten.addmm.default) is prim_of(aten.mm.default) is OPSET["mm"]
    assert prim_of(aten.relu.default) is None
    listed = [
        name for prim in OPSET.values() if isinstance(prim, ExternPrim) for name in prim.operators
    ]
    assert len(listed) == len(set(listed)) == len(EXTERN_OPS)
