"""Conversions of float8 by the instructions of compute capability 8.9 and later; they replace the
functions of the same names in ``device_functions.py``.

The instructions saturate; eager mode's casts give NaN or infinity beyond the range.
"""

# Constants of kernels are given as numbers:
# pyright: reportArgumentType=false

import triton.language as tl


def to_e4m3(x, beyond):
    """The bits of the nearest float8 of 4 bits of exponent and 3 of mantissa, ties to even;
    ``beyond`` its range.
    """
    code = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    if beyond == 0x7F:
        code |= tl.where(tl.abs(x) > 464.0, 0x7F, 0).to(tl.uint8)
    return code


def to_e5m2(x):
    """The bits of the nearest float8 of 5 bits of exponent and 2 of mantissa, ties to even;
    infinite beyond its range.
    """
    code = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) >= 61440.0, (code & 0x80) | 0x7C, code).to(tl.uint8)


def from_e4m3(code):
    """float32 of ``to_e4m3``'s bits."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
