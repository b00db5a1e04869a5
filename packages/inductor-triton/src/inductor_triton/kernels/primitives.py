"""Device functions that are a single machine instruction, by its name in PTX.

Those for ``add`` and ``sub`` are never contracted to a fused multiply-add. ``round`` rounds ties to
even; ``round_tf32`` rounds to the 10 fraction bits that tensor cores read.
"""

from __future__ import annotations

ROUNDING = {"floor": "rmi", "ceil": "rpi", "trunc": "rzi", "round": "rni"}
PRIMITIVES = {
    **{f"{op}{n}": f"cvt.{way}.f{n}.f{n}" for op, way in ROUNDING.items() for n in (32, 64)},
    **{f"{op}_rn{n}": f"{op}.rn.f{n}" for op in ("add", "sub") for n in (32, 64)},
    "round_tf32": "cvt.rna.tf32.f32",
    "rsqrt32": "rsqrt.approx.f32",  # 2 ulp
    "exp2_32": "ex2.approx.f32",
    "rcp32": "rcp.approx.ftz.f32",  # 1 ulp
}


def primitive_text(name: str) -> str:
    """The definition of a primitive in Triton's language."""
    instruction = PRIMITIVES[name]
    operands = ["x", "y"] if "_rn" in name else ["x"]
    bits = 64 if name.endswith("64") else 32
    register = "d" if bits == 64 else "r" if "tf32" in name else "f"
    slots = ", ".join(f"${number}" for number in range(len(operands) + 1))
    constraints = ",".join([f"={register}", *register * len(operands)])
    return (
        f"def {name}({', '.join(operands)}):\n"
        f"    return tl.inline_asm_elementwise(\n"
        f'        "{instruction} {slots};", "{constraints}", [{", ".join(operands)}], '
        f"dtype=tl.float{bits}, is_pure=True, pack=1\n"
        f"    )\n"
    )
