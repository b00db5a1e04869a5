"""A small trace written by hand, so that its report is the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SOURCE = """\
def f(x, n):
    y = x.exp()
    print("here")
    if n > 3:
        y = y + n
    return y @ y
"""
FILE = "/home/somebody/program.py"

CAPTURED = """\
# bytecode_dynamo.graph 1
def graph(l_x: f32[4, 4]) -> (f32[4, 4],):
    'File "/home/somebody/program.py", line 2, in f: y = x.exp()'
    exp: f32[4, 4] = method.exp(l_x)
    'File "/home/somebody/program.py", line 6, in f: return y @ y'
    matmul: f32[4, 4] = operator.matmul(exp, exp)
    return (matmul,)
"""
PRIMS = """\
# primops.graph 5
def graph(l_x: f32[4, 4]) -> (f32[4, 4],):
    'File "/home/somebody/program.py", line 2, in f: y = x.exp()'
    exp: f32[4, 4] = prims.exp(l_x)
    'File "/home/somebody/program.py", line 6, in f: return y @ y'
    mm_default: f32[4, 4] = ops.aten.mm.default(exp, exp)
    return (mm_default,)
"""
LOOPS = "def kernel0(in0: In('float32', 16)):\n    v0 = load(in0, [x0], 'float32')\n"
KERNEL = "// exp: y = x.exp() (program.py:2)\n// def kernel0(...)\nvoid kernel0(float *in0) {}\n"


def guard(on: str, text: str, line: int, kind: str = "equals") -> list[Any]:
    return [on, kind, text, [FILE, line], 2.5e-8]


def frame(position: int, **facts: Any) -> dict[str, Any]:
    return {
        "event": "frame",
        "id": position,
        "at": position * 1.0,
        "seconds": 0.5,
        "name": "f",
        "file": FILE,
        "first": 1,
        "last": 6,
        "resumed": None,
        "number": 0,
        "outcome": "captured",
        "lines": [2, 3],
        "executable": [2, 3, 4, 5, 6],
        "break": None,
        "guards": [guard("x", "is a float32 tensor of shape [4, 4] on cpu", 2, "tensor")],
        "check_seconds": 1.5e-7,
        "recompiled": None,
        "error": None,
        **facts,
    }


BREAK = {
    "id": "BD003",
    "title": "input or output",
    "reason": "call of print()",
    "hint": "print outside",
    "stack": [[FILE, 3, "f"]],
}


def stage(name: str, layer: str, at: float, seconds: float) -> dict[str, Any]:
    return {
        "event": "stage",
        "graph": 0,
        "direction": "inference",
        "stage": name,
        "layer": layer,
        "at": at,
        "seconds": seconds,
        "hits": 0,
        "misses": 1,
    }


def call(name: str, kernel: int | None, nodes: list[str], **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kernel": kernel,
        "reads": [],
        "writes": [],
        "bytes_read": 64,
        "bytes_written": 64,
        "operations": 0,
        "origins": [[node, ""] for node in nodes],
        **facts,
    }


def buffer(name: str, kind: str, birth: int, death: int | None, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "dtype": "float32",
        "shape": "[4, 4]",
        "size": 64,
        "birth": birth,
        "death": death,
        "memory": name,
        **facts,
    }


PROGRAM = {
    "event": "program",
    "graph": 0,
    "direction": "inference",
    "kernels": [
        {
            "name": "kernel0",
            "title": "exp",
            "device": "cpu",
            "origins": [["exp", "y = x.exp()  (program.py:2)"]],
            "loops": LOOPS,
            "source": KERNEL,
        }
    ],
    "calls": [
        call("kernel0", 0, ["exp"]),
        call("aten.mm.default", None, ["mm_default"], bytes_read=128, operations=128),
    ],
    "buffers": [
        buffer("l_x", "input", 0, None),
        buffer("buf0", "intermediate", 0, 2),
        buffer("buf1", "result", 1, None),
        buffer("buf2", "intermediate", 0, 1, size=256),
        buffer("buf3", "intermediate", 1, 2, size=256, memory="buf2"),
    ],
    "decisions": [
        {
            "first": "buf0",
            "second": "mm (buf1)",
            "first_nodes": ["exp"],
            "second_nodes": ["mm_default"],
            "accepted": False,
            "reason": "two operators",
            "saved": 64,
        }
    ],
}

SESSION = {
    "event": "session",
    "format": 1,
    "profiles": True,
    "time": 0.0,
    "python": "3.11.7",
    "torch": "2.13.0",
    "threads": 2,
    "machine": "a machine",
}

EVENTS: list[dict[str, Any]] = [
    SESSION,
    {"event": "source", "file": FILE, "text": "sources/000.py"},
    {"event": "lookup", "graph": 0, "direction": "", "what": "graph", "hit": False,
     "reason": "is the first captured graph in this cache", "same_as": None},
    stage("30-prims.py", "primops", 0.2, 0.01),
    stage("60-host.py", "code generator", 0.25, 0.15),
    PROGRAM,
    {"event": "graph", "id": 0, "frame": 0, "at": 0.1, "seconds": 0.3, "nodes": 2, "error": None},
    frame(0, outcome="broke", **{"break": BREAK}),
    frame(1, resumed=3, lines=[4, 6], guards=[guard("n", "equals 1", 4)]),
    frame(2, number=1, recompiled="x.size(0) was 4, now 5", outcome="broke", **{"break": BREAK}),
    frame(3, resumed=3, number=1, lines=[4, 6], recompiled="n was 1, now 2"),
    {"event": "profile", "graph": 0, "direction": "inference", "steps": [
        {"count": 3, "first": 1e-3, "total": 1.4e-3, "least": 1e-4},
        {"count": 1, "first": 5e-4, "total": 5e-4, "least": 5e-4}]},
    {"event": "end", "at": 4.0, "bandwidth": 1e6, "rate": 1e6},
]  # fmt: skip


def write_trace(directory: Path, events: list[dict[str, Any]] = EVENTS) -> Path:
    """Writes the trace into ``directory`` and returns it."""
    session = directory / "1-000"
    texts = {
        "sources/000.py": SOURCE,
        "graph-000/10-captured.py": CAPTURED,
        "graph-000/inference-30-prims.py": PRIMS,
        "graph-000/inference-60-host.py": "def call(l_x):\n    return [l_x]\n",
        "events.jsonl": "".join(json.dumps(event) + "\n" for event in events),
    }
    for name, text in texts.items():
        path = session / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory
