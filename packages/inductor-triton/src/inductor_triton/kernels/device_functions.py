"""Device functions in Triton's language.

This file is read as text (see ``library``) and never imported: the source of each function that a
kernel uses, docstring included, is copied into the kernel's source. Errors are in units in the last
place over the whole range, given that ``tl.exp2`` is within 2 ulp. Functions that are a single
machine instruction are in ``primitives``, or marked "primitive" here; the interpreter has its own
versions of them.
"""

# Constants of kernels are given as numbers, and primitives are defined elsewhere:
# pyright: reportArgumentType=false, reportUndefinedVariable=false
# ruff: noqa: F821

import triton.language as tl


def fma32(x, y, z):
    """Primitive; one rounding."""
    return tl.fma(x, y, z)


def to_bfloat16(x):
    """Primitive; float32 to the nearest bfloat16, ties to even."""
    return x.to(tl.bfloat16)


def to_e4m3(x, beyond):
    """The bits of the nearest float8 of 4 bits of exponent and 3 of mantissa, ties to even;
    ``beyond`` its range.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    usual = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    code = tl.where(size < 0x3C800000, small, tl.where(size <= 0x43E80000, usual, beyond))
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


def from_e4m3(code):
    """float32 of ``to_e4m3``'s bits."""
    wide = code.to(tl.int32)
    size = wide & 0x7F
    value = ((size << 20) | ((wide & 0x80) << 24)).to(
        tl.float32, bitcast=True
    ) * 1.329227995784916e36
    return tl.where(size == 0x7F, float("nan"), value)


def to_e5m2(x):
    """The bits of the nearest float8 of 5 bits of exponent and 2 of mantissa, ties to even;
    infinite beyond its range.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    small = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    usual = (size - 0x38000000 + 0xFFFFF + ((size >> 21) & 1)) >> 21
    code = tl.where(
        size < 0x38800000,
        small,
        tl.where(size < 0x47800000, usual, 0x7C + (size > 0x7F800000).to(tl.int32) * 3),
    )
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


def from_e5m2(code):
    """float32 of ``to_e5m2``'s bits, which are half of a float16."""
    return (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


def floordiv_int(a, b):
    """Quotient rounded down; Triton's own truncates."""
    inexact = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b - inexact.to(tl.int32)


def remainder_int(a, b):
    """Remainder with the sign of ``b``; Triton's own has that of ``a``."""
    rest = a % b
    wrong = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(wrong, rest + b, rest)


def remainder_float(rest, b):
    """The remainder with the sign of ``b`` from the one with the sign of the dividend."""
    wrong = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(wrong, rest + b, rest)


def exp32(x):
    """e**x; 4 ulp. Unlike ``tl.exp``, carries the rounding error of x * log2(e) along."""
    x = tl.minimum(
        tl.maximum(x, -150.0, propagate_nan=tl.PropagateNan.ALL),
        100.0,
        propagate_nan=tl.PropagateNan.ALL,
    )
    high = x * 1.44269502
    low = fma32(x, 1.44269502, -high) + x * 1.92596299e-8
    return exp2_32(high) * (1.0 + low * 0.693147182)


def exp16(x):
    """e**x; relative error below 1e-5: enough where 16 bits are kept of the result. A square is
    subnormal where its root, which takes one instruction, is not.
    """
    root = tl.exp2(x * 0.72134752)
    return root * root


def split_log32(x):
    """(e, ln m) with x = m * 2**e and m in [0.75, 1.5), for positive finite x."""
    small = x < 1.1754944e-38  # of less than this, Triton makes a float64
    bits = tl.where(small, x * 8388608.0, x).to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F400000) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    z = f * f
    p = f * -0.04515227 + 0.10472551
    p = p * f - 0.13163936
    p = p * f + 0.1447763
    p = p * f - 0.16646878
    p = p * f + 0.19990848
    p = p * f - 0.2500011
    p = p * f + 0.3333345
    return exponent.to(tl.float32) - tl.where(small, 23.0, 0.0), f, p * f * z - 0.5 * z


def special_log32(x, result):
    """``result`` with the values of a logarithm at and beyond the ends of its domain."""
    result = tl.where(x == 0.0, float("-inf"), result)
    result = tl.where(x < 0.0, float("nan"), result)
    return tl.where((x == float("inf")) | (x != x), x, result)


def log32(x):
    """ln x; 1 ulp."""
    e, f, tail = split_log32(x)
    return special_log32(x, (f + (tail + e * -2.12194440e-4)) + e * 0.693359375)


def log2_32(x):
    """Binary logarithm; 2 ulp, exact for powers of two."""
    e, f, tail = split_log32(x)
    return special_log32(
        x, fma32(f, 1.44269502, (f + tail) * 1.92596299e-8 + tail * 1.44269502) + e
    )


def log1p32(x):
    """ln(1 + x); 3 ulp. The rounding of 1 + x is undone by the factor x / ((1 + x) - 1)."""
    u = 1.0 + x
    result = log32(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0))
    result = tl.where(u == 1.0, x, result)
    return tl.where(u == float("inf"), x, result)


def expm1_32(x):
    """e**x - 1; 5 ulp. Its series up to 0.7, beyond which the subtraction does not magnify the
    error of e**x.
    """
    z = x * x
    p = x * 2.75573192e-6 + 2.48015873e-5
    p = p * x + 1.98412698e-4
    p = p * x + 1.38888889e-3
    p = p * x + 8.33333333e-3
    p = p * x + 4.16666667e-2
    p = p * x + 0.166666667
    p = p * x + 0.5
    near = p * z + x
    return tl.where(tl.abs(x) < 0.7, near, exp32(x) - 1.0)


def tanh32(x):
    """Hyperbolic tangent; 3 ulp."""
    a = tl.abs(x)
    z = x * x
    p = z * -0.005514777 + 0.020469056
    p = p * z - 0.05368791
    p = p * z + 0.13330829
    p = p * z - 0.3333326
    near = p * z * x + x
    far = 1.0 - 2.0 / (exp32(a + a) + 1.0)
    return tl.where(a < 0.65, near, tl.where(x < 0.0, -far, far))


def sinh32(x):
    """Hyperbolic sine; 8 ulp. Built on e**(x/2), which does not overflow before the result does."""
    z = x * x
    p = z * 2.03721912e-4 + 8.33028376e-3
    p = p * z + 0.166667160
    near = p * z * x + x
    a = tl.abs(x)
    h = exp32(0.5 * a)
    far = (0.5 * h) * h - (0.5 / h) / h
    return tl.where(a < 1.0, near, tl.where(x < 0.0, -far, far))


def cosh32(x):
    """Hyperbolic cosine; 8 ulp."""
    h = exp32(0.5 * tl.abs(x))
    return (0.5 * h) * h + (0.5 / h) / h


def erf32(x):
    """Error function; 3 ulp."""
    a = tl.abs(x)
    z = x * x
    p = z * -2.6800044e-05 - 0.0004812327
    p = p * z + 0.004823365
    p = p * z - 0.026661173
    p = p * z + 0.11278966
    p = p * z - 0.37612218
    p = p * z + 1.1283791
    t = tl.minimum(a, 4.0)
    q = t * 2.0822488e-05 - 0.00043133643
    q = q * t + 0.004156041
    q = q * t - 0.025080202
    q = q * t + 0.108219944
    q = q * t + 0.6334011
    q = q * t + 1.1294883
    q = q * t - 0.00016920395
    far = 1.0 - exp32(-q)
    far = tl.where(x < 0.0, -far, far)
    return tl.where(x != x, x, tl.where(a < 1.0, p * x, far))


def interleave(a, b):
    """Primitive; a[0], b[0], a[1], b[1] and so on."""
    return tl.interleave(a, b)


def load_element16(pointer, index, is_valid, is_inside, errors):
    """Primitive; the element at ``pointer + index``, or zero bits. ``errors`` is set if the index
    is inside of the tile and not valid. Triton loads it neither ahead of time nor in another
    layout, which would take more time than a lookup that hits the cache.
    """
    bits = tl.inline_asm_elementwise(
        "{ .reg .pred p, q; .reg .b32 one; setp.eq.b32 p, $2, 1; setp.eq.b32 q, $2, 0; "
        "mov.b32 one, 1; mov.b16 $0, 0; @p ld.global.nc.b16 $0, [$1]; "
        "@q st.global.b32 [$3], one; }",
        "=h,l,r,l",
        [
            (pointer + index).to(tl.int64),
            tl.where(is_inside, is_valid.to(tl.int32), 2),
            errors.to(tl.int64),
        ],
        dtype=tl.int16,
        is_pure=True,
        pack=1,
    )
    return bits.to(pointer.dtype.element_ty, bitcast=True)


def load_element32(pointer, index, is_valid, is_inside, errors):
    """Primitive; the element at ``pointer + index``, or zero bits. ``errors`` is set if the index
    is inside of the tile and not valid. Triton loads it neither ahead of time nor in another
    layout, which would take more time than a lookup that hits the cache.
    """
    bits = tl.inline_asm_elementwise(
        "{ .reg .pred p, q; .reg .b32 one; setp.eq.b32 p, $2, 1; setp.eq.b32 q, $2, 0; "
        "mov.b32 one, 1; mov.b32 $0, 0; @p ld.global.nc.b32 $0, [$1]; "
        "@q st.global.b32 [$3], one; }",
        "=r,l,r,l",
        [
            (pointer + index).to(tl.int64),
            tl.where(is_inside, is_valid.to(tl.int32), 2),
            errors.to(tl.int64),
        ],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return bits.to(pointer.dtype.element_ty, bitcast=True)


def wide_product(a, b):
    """Primitive; the low and the high word of the product of two words, in one instruction."""
    return tl.inline_asm_elementwise(
        "{ .reg .b64 wide; mul.wide.u32 wide, $2, $3; mov.b64 {$0, $1}, wide; }",
        "=r,=r,r,r",
        [a, b],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


def philox(seed, block, stream: tl.constexpr = 0, rounds: tl.constexpr = 10):
    """The four words of Philox4x32 at a block number of a stream."""
    c0 = block.to(tl.uint32)
    c1 = (block.to(tl.int64) >> 32).to(tl.uint32)
    c2 = c0 * 0 + stream
    c3 = c0 * 0
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(rounds):  # type: ignore[attr-defined]
        low0, high0 = wide_product(c0, 0xD2511F53)
        low2, high2 = wide_product(c2, 0xCD9E8D57)
        c0 = high2 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low2
        c3 = low0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return c0, c1, c2, c3


def tanh16(x):
    """tanh(x); relative error 4e-5: enough where 16 bits are kept of the result."""
    t = rcp32(1.0 + tl.exp2(x * 2.88539008))
    return tl.where(tl.abs(x) < 0.01, x, 1.0 - (t + t))  # type: ignore[operator]


def one_plus_erf32(x):
    """1 + erf(x); absolute error 4e-7, relative 4e-6 down to -3.5; log2 of erfc is smooth."""
    a = tl.abs(x)
    p = a * -4.32724164e-07 + 1.0196607e-05
    p = p * a - 0.000102221093
    p = p * a + 0.000547107076
    p = p * a - 0.00141484919
    p = p * a - 0.00129661954
    p = p * a + 0.0290107448
    p = p * a - 0.148977309
    p = p * a - 0.91826874
    p = p * a - 1.62792468
    p = p * a + 2.86641352e-07
    q = tl.exp2(p)
    return tl.where(x < 0.0, q, 2.0 - q)


def one_plus_erf16(x):
    """1 + erf(x); absolute error 4e-6, relative 2e-5 down to -3.5: enough where 16 bits are kept of
    the result.
    """
    a = tl.abs(x)
    p = a * -1.99578644e-05 + 0.000482885895
    p = p * a - 0.00521707162
    p = p * a + 0.033925239
    p = p * a - 0.15250209
    p = p * a - 0.916990936
    p = p * a - 1.62810326
    p = p * a + 4.37381004e-06
    q = tl.exp2(p)
    return tl.where(x < 0.0, q, 2.0 - q)


def gelu16(x, half: tl.constexpr = 0.5, shift: tl.constexpr = -1.0):
    """half * x * (1 + erf(x/sqrt 2)), with log2(half) as ``shift``; relative error 1.2e-4 down to
    -4, absolute 2e-5: enough where 16 bits are kept of it. The positive part without a maximum:
    those share their unit with the random numbers.
    """
    a = tl.abs(x)
    p = a * -0.000316854479 + 0.00581203401
    p = p * a - 0.048290778
    p = p * a - 0.463798314
    p = p * a - 1.14958966
    tail = tl.exp2(p * a + shift)
    part = x * half
    return (tl.abs(part) + part) - tl.minimum(a, 16.0) * tail


def uniform(seed, counter):
    """float32 in [0, 1) from lane ``counter % 4`` of Philox block ``counter // 4``."""
    c0, c1, c2, c3 = philox(seed, counter >> 2)
    lane = (counter & 3).to(tl.int32)
    word = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


def swapped(word):
    """The halves of a word in the other order."""
    return (word << 16) | (word >> 16)


def uniform16(seed, counter):
    """float32 in [0, 1) from lane ``counter % 8 // 2`` of block ``counter // 8`` of Philox4x32-7,
    its halves swapped for odd ones.
    """
    c0, c1, c2, c3 = philox(seed, counter >> 3, 1, 7)
    lane = ((counter >> 1) & 3).to(tl.int32)
    word = tl.where(lane < 2, tl.where(lane == 0, c0, c1), tl.where(lane == 2, c2, c3))
    word = tl.where((counter & 1) == 1, swapped(word), word)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


def words4(seed, block):
    """The words of Philox blocks in a row: each block is computed once."""
    c0, c1, c2, c3 = philox(seed, block)
    return interleave(interleave(c0, c2), interleave(c1, c3))


def uniform4(seed, block):
    """``uniform`` for a row of counters from a multiple of 4 on, given their block numbers."""
    return (words4(seed, block) >> 8).to(tl.float32) * 5.9604644775390625e-08


def words8(seed, block):
    """The words of Philox blocks in a row for eight numbers each, of which two share one: once as
    it is, once swapped.
    """
    c0, c1, c2, c3 = philox(seed, block, 1, 7)
    words = interleave(interleave(c0, c2), interleave(c1, c3))
    return interleave(words, swapped(words))


def uniform8(seed, block):
    """``uniform16`` for a row of counters from a multiple of 8 on, given their block numbers."""
    return (words8(seed, block) >> 8).to(tl.float32) * 5.9604644775390625e-08


def check_index(index, size, active, errors):
    """Whether ``index`` is within [0, size); sets the error flag where an active one is not."""
    valid = (index >= 0) & (index < size)
    wrong = active & (valid == 0)
    tl.store(errors + wrong.to(tl.int32) * 0, 1, mask=wrong)
    return valid


def combine_sum(a, b):
    """Sum."""
    return a + b


def combine_prod(a, b):
    """Product."""
    return a * b


def combine_max(a, b):
    """Maximum; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def combine_min(a, b):
    """Minimum; NaN wins."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def combine_any(a, b):
    """Or."""
    return a | b


def combine_all(a, b):
    """And."""
    return a & b


def is_same(a, b):
    """Whether the values are equal or both NaN."""
    return (a == b) | ((a != a) & (b != b))


def combine_argmax(a, i, b, j):
    """The larger value and its position; NaN is the largest, the smaller position wins a tie."""
    first = (a > b) | ((a != a) & (b == b)) | (is_same(a, b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


def combine_argmin(a, i, b, j):
    """The smaller value and its position; NaN is the smallest, the smaller position wins a tie."""
    first = (a < b) | ((a != a) & (b == b)) | (is_same(a, b) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


def larger(a, b):
    """The maximum; NaN wins."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def exp_difference(a, b):
    """exp(a - b)."""
    return tl.exp2((a - b) * 1.44269504)


def row_scale(m):
    """log2(e); 1/2 where a product with m overflows and exp(a - m) is 0 or 1."""
    return tl.where(tl.abs(m) > 1e38, 0.5, 1.44269504)


def online_max(m, s):
    """The maximum; no sum means that all values were -inf."""
    return tl.where(s == 0.0, float("-inf"), m)


def online_sum(m, s):
    """The sum; NaN where the maximum is infinite, as exp(inf - inf) is."""
    return tl.where((s == 0.0) | (m == float("inf")), float("nan"), s)
