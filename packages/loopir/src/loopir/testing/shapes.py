"""Kernel texts of the conformance kit that are more than one operation."""

from __future__ import annotations

REDUCTIONS = {
    "rows": """\
@kernel(device='cpu', vector='r0')
def {name}(in0: In('{dtype}', 335), out0: Out('{result}', 5)):
    for x0 in range(5):
        for r0 in reduce(67):
            v0 = load(in0, [67*x0 + r0], '{dtype}')
            v1 = reduce('{kind}', v0, '{result}')
        store(out0, [x0], v1)
""",
    "columns": """\
@kernel(device='cpu', vector='x0')
def {name}(in0: In('{dtype}', 670), out0: Out('{result}', 67)):
    for x0 in range(67):
        for r0 in reduce(10):
            v0 = load(in0, [x0 + 67*r0], '{dtype}')
            v1 = reduce('{kind}', v0, '{result}')
        store(out0, [x0], v1)
""",
    "all": """\
@kernel(device='cpu', vector='r0')
def {name}(in0: In('{dtype}', 131), out0: Out('{result}', 1)):
    for r0 in reduce(131):
        v0 = load(in0, [r0], '{dtype}')
        v1 = reduce('{kind}', v0, '{result}')
    store(out0, [0], v1)
""",
    "two_axes": """\
@kernel(device='cpu', vector='r1')
def {name}(in0: In('{dtype}', 240), out0: Out('{result}', 4)):
    for x0 in range(4):
        for r0 in reduce(3):
            for r1 in reduce(20):
                v0 = load(in0, [20*x0 + 80*r0 + r1], '{dtype}')
                v1 = reduce('{kind}', v0, '{result}')
        store(out0, [x0], v1)
""",
    "one": """\
@kernel(device='cpu', vector='x0')
def {name}(in0: In('{dtype}', 19), out0: Out('{result}', 19)):
    for x0 in range(19):
        for r0 in reduce(1):
            v0 = load(in0, [x0 + r0], '{dtype}')
            v1 = reduce('{kind}', v0, '{result}')
        store(out0, [x0], v1)
""",
}

EMPTY_REDUCTION = """\
@kernel(device='cpu', vector='r0')
def {kind}_empty(in0: In('{dtype}', 3*s0), out0: Out('{dtype}', 3), s0: Size(hint=8)):
    for x0 in range(3):
        for r0 in reduce(s0):
            v0 = load(in0, [s0*x0 + r0], '{dtype}')
            v1 = reduce('{kind}', v0, '{dtype}')
        store(out0, [x0], v1)
"""

SCANS = {
    "rows": """\
@kernel(device='cpu')
def {name}(in0: In('{dtype}', 6*s0), out0: Out('{dtype}', 6*s0), s0: Size(hint=8)):
    for x0 in range(6):
        for r0 in reduce(s0):
            v0 = load(in0, [s0*x0 + r0], '{dtype}')
            v1 = scan('{kind}', v0)
            store(out0, [s0*x0 + r0], v1)
""",
    "columns": """\
@kernel(device='cpu', vector='x0')
def {name}(in0: In('{dtype}', 37*s0), out0: Out('{dtype}', 37*s0), s0: Size(hint=8)):
    for x0 in range(37):
        for r0 in reduce(s0):
            v0 = load(in0, [x0 + 37*r0], '{dtype}')
            v1 = scan('{kind}', v0)
            store(out0, [x0 + 37*r0], v1)
""",
}

SYMBOLIC = {
    "symbolic_pointwise": """\
@kernel(device='cpu', vector='x0')
def symbolic_pointwise(in0: In('float32', s0), in1: In('float32', 1), out0: Out('float32', s0), s0: Size(hint=8)):
    for x0 in range(s0):
        v0 = load(in0, [x0], 'float32')
        v1 = load(in1, [0], 'float32')
        v2 = mul(v0, v1)
        v3 = tanh(v2)
        store(out0, [x0], v3)
""",
    "symbolic_softmax": """\
@kernel(device='cpu', vector='r0')
def symbolic_softmax(in0: In('float32', 5*s0), out0: Out('float32', 5*s0), s0: Size(hint=8)):
    for x0 in range(5):
        for r0 in reduce(s0):
            v0 = load(in0, [s0*x0 + r0], 'float32')
            v1 = reduce('max', v0, 'float32')
        for r0 in reduce(s0):
            v2 = load(in0, [s0*x0 + r0], 'float32')
            v3 = sub(v2, v1)
            v4 = exp(v3)
            v5 = reduce('sum', v4, 'float32')
        for r0 in reduce(s0):
            v6 = load(in0, [s0*x0 + r0], 'float32')
            v7 = sub(v6, v1)
            v8 = exp(v7)
            v9 = div(v8, v5)
            store(out0, [s0*x0 + r0], v9)
""",
    "symbolic_layernorm_bfloat16": """\
@kernel(device='cpu', vector='r0')
def symbolic_layernorm_bfloat16(in0: In('bfloat16', 48*s0), in1: In('bfloat16', 48), out0: Out('bfloat16', 48*s0), \
out1: Out('float32', s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for r0 in reduce(48):
            v0 = load(in0, [48*x0 + r0], 'bfloat16')
            v1 = cast(v0, 'float32')
            v2 = reduce('sum', v1, 'float32')
        v3 = constant(0.020833333333333332, 'float32')
        v4 = mul(v2, v3)
        for r0 in reduce(48):
            v5 = load(in0, [48*x0 + r0], 'bfloat16')
            v6 = cast(v5, 'float32')
            v7 = sub(v6, v4)
            v8 = mul(v7, v7)
            v9 = reduce('sum', v8, 'float32')
        v10 = mul(v9, v3)
        v11 = constant(1e-05, 'float32')
        v12 = add(v10, v11)
        v13 = rsqrt(v12)
        store(out1, [x0], v13)
        for r0 in reduce(48):
            v14 = load(in0, [48*x0 + r0], 'bfloat16')
            v15 = cast(v14, 'float32')
            v16 = sub(v15, v4)
            v17 = mul(v16, v13)
            v18 = load(in1, [r0], 'bfloat16')
            v19 = cast(v18, 'float32')
            v20 = mul(v17, v19)
            v21 = cast(v20, 'bfloat16')
            store(out0, [48*x0 + r0], v21)
""",
    "symbolic_transpose": """\
@kernel(device='cpu', vector='x1')
def symbolic_transpose(in0: In('float32', 20*s0), out0: Out('float32', 20*s0), s0: Size(hint=8)):
    for x0 in range(20):
        for x1 in range(s0):
            v0 = load(in0, [x0 + 20*x1], 'float32')
            store(out0, [s0*x0 + x1], v0)
""",
    "symbolic_gather": """\
@kernel(device='cpu', vector='x1')
def symbolic_gather(in0: In('int64', s0), in1: In('float32', 11*24), out0: Out('float32', 24*s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for x1 in range(24):
            v0 = load(in0, [x0], 'int64')
            i0 = indirect(v0, 11)
            v1 = load(in1, [24*i0 + x1], 'float32')
            store(out0, [24*x0 + x1], v1)
""",
    "symbolic_scatter_add": """\
@kernel(device='cpu', vector='x1')
def symbolic_scatter_add(in0: In('int32', s0), in1: In('float32', 24*s0), inout0: InOut('float32', 11*24), s0: Size(hint=8)):
    for x0 in range(s0):
        for x1 in range(24):
            v0 = load(in0, [x0], 'int32')
            i0 = indirect(v0, 11)
            v1 = load(in1, [24*x0 + x1], 'float32')
            store(inout0, [24*i0 + x1], v1, mode='add')
""",
    "symbolic_scatter_add_elements": """\
@kernel(device='cpu', vector='x0')
def symbolic_scatter_add_elements(in0: In('int64', s0), in1: In('int64', s0), inout0: InOut('int64', 11), s0: Size(hint=8)):
    for x0 in range(s0):
        v0 = load(in0, [x0], 'int64')
        i0 = indirect(v0, 11)
        v1 = load(in1, [x0], 'int64')
        store(inout0, [i0], v1, mode='add')
""",
    "symbolic_out_of_range": """\
@kernel(device='cpu', vector='x0')
def symbolic_out_of_range(in0: In('int64', s0), in1: In('float32', 11), out0: Out('float32', s0), s0: Size(hint=8)):
    for x0 in range(s0):
        v0 = load(in0, [x0], 'int64')
        i0 = indirect(v0, 11)
        v1 = load(in1, [i0], 'float32')
        store(out0, [x0], v1)
""",
    "symbolic_indirect_size": """\
@kernel(device='cpu', vector='x0')
def symbolic_indirect_size(in0: In('float32', 3*s0), out0: Out('float32', 3*s0), s0: Size(hint=8)):
    for x0 in range(3*s0):
        v0 = index_expr(3*s0 - x0 - 1, 'int64')
        i0 = indirect(v0, 3*s0)
        v1 = load(in0, [i0], 'float32')
        store(out0, [x0], v1)
""",
    "symbolic_pad": """\
@kernel(device='cpu', vector='x1')
def symbolic_pad(in0: In('float32', 13*s0), out0: Out('float32', 18*s0), s0: Size(hint=8)):
    for x0 in range(s0):
        for x1 in range(18):
            v0 = constant(2, 'int64')
            v1 = index_expr(x1, 'int64')
            v2 = le(v0, v1)
            v3 = constant(15, 'int64')
            v4 = lt(v1, v3)
            v5 = and_(v2, v4)
            v6 = load(in0, [13*x0 + x1 - 2], 'float32', mask=v5, other=-1.5)
            store(out0, [18*x0 + x1], v6)
""",
    "symbolic_column_statistics": """\
@kernel(device='cpu', vector='x0')
def symbolic_column_statistics(in0: In('float32', 37*s0), out0: Out('float32', 37), out1: Out('float32', 37*s0), \
s0: Size(hint=8)):
    for x0 in range(37):
        for r0 in reduce(s0):
            v0 = load(in0, [x0 + 37*r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
            v2 = mul(v0, v0)
            v3 = reduce('sum', v2, 'float32')
        v4 = sub(v3, v1)
        store(out0, [x0], v4)
        for r0 in reduce(s0):
            v5 = load(in0, [x0 + 37*r0], 'float32')
            v6 = add(v5, v4)
            store(out1, [x0 + 37*r0], v6)
""",
    "symbolic_loss": """\
@kernel(device='cpu', vector='r0')
def symbolic_loss(in0: In('float32', 10*s0), in1: In('int64', s0), out0: Out('float32', 1), s0: Size(hint=8)):
    for r0 in reduce(s0):
        v0 = load(in1, [r0], 'int64')
        i0 = indirect(v0, 10)
        v1 = load(in0, [10*r0 + i0], 'float32')
        v2 = neg(v1)
        v3 = reduce('sum', v2, 'float32')
    store(out0, [0], v3)
""",
}

STATIC = {
    "three_dims": """\
@kernel(device='cpu', vector='x2')
def three_dims(in0: In('float32', 3*5*33), in1: In('float32', 5), in2: In('float32', 33), out0: Out('float32', 3*5*33)):
    for x0 in range(3):
        for x1 in range(5):
            for x2 in range(33):
                v0 = load(in0, [165*x0 + 33*x1 + x2], 'float32')
                v1 = load(in1, [x1], 'float32')
                v2 = load(in2, [x2], 'float32')
                v3 = mul(v0, v1)
                v4 = add(v3, v2)
                store(out0, [165*x0 + 33*x1 + x2], v4)
""",
    "no_ranges": """\
@kernel(device='cpu')
def no_ranges(in0: In('float32', 1), out0: Out('float32', 1), out1: Out('int64', 1)):
    v0 = load(in0, [0], 'float32')
    v1 = exp(v0)
    store(out0, [0], v1)
    v2 = cast(v1, 'int64')
    store(out1, [0], v2)
""",
    "flip": """\
@kernel(device='cpu', vector='x1')
def flip(in0: In('float64', 4*41), out0: Out('float64', 4*41)):
    for x0 in range(4):
        for x1 in range(41):
            v0 = load(in0, [163 - 41*x0 - x1], 'float64')
            store(out0, [41*x0 + x1], v0)
""",
    "strided": """\
@kernel(device='cpu', vector='x1')
def strided(in0: In('float32', 6*80), out0: Out('float32', 3*40)):
    for x0 in range(3):
        for x1 in range(40):
            v0 = load(in0, [160*x0 + 2*x1 + 1], 'float32')
            v1 = sqrt(v0)
            store(out0, [40*x0 + x1], v1)
""",
    "division_in_index": """\
@kernel(device='cpu', vector='x0')
def division_in_index(in0: In('float32', 35), in1: In('float32', 7), out0: Out('float32', 70)):
    for x0 in range(70):
        v0 = load(in0, [(x0 // 2)], 'float32')
        v1 = load(in1, [(x0 % 7)], 'float32')
        v2 = add(v0, v1)
        store(out0, [x0], v2)
""",
    "concatenation": """\
@kernel(device='cpu', vector='x1')
def concatenation(in0: In('float32', 3*10), in1: In('float32', 3*21), out0: Out('float32', 3*31)):
    for x0 in range(3):
        for x1 in range(31):
            v0 = index_expr(x1, 'int64')
            v1 = constant(10, 'int64')
            v2 = lt(v0, v1)
            v3 = not_(v2)
            v4 = load(in1, [21*x0 + x1 - 10], 'float32', mask=v3, other=0.0)
            v5 = load(in0, [10*x0 + x1], 'float32', mask=v2, other=0.0)
            v6 = where(v2, v5, v4)
            store(out0, [31*x0 + x1], v6)
""",
    "reads_back_what_it_stored": """\
@kernel(device='cpu', vector='r0')
def reads_back_what_it_stored(in0: In('float32', 4*50), out0: Out('float32', 4*50), out1: Out('float32', 4*50)):
    for x0 in range(4):
        for r0 in reduce(50):
            v0 = load(in0, [50*x0 + r0], 'float32')
            v1 = exp(v0)
            store(out0, [50*x0 + r0], v1)
            v2 = reduce('sum', v1, 'float32')
        for r0 in reduce(50):
            v3 = load(out0, [50*x0 + r0], 'float32')
            v4 = div(v3, v2)
            store(out1, [50*x0 + r0], v4)
""",
    "in_place": """\
@kernel(device='cpu', vector='x0')
def in_place(inout0: InOut('float32', 100), in0: In('float32', 100)):
    for x0 in range(100):
        v0 = load(inout0, [x0], 'float32')
        v1 = load(in0, [x0], 'float32')
        v2 = mul(v0, v1)
        store(inout0, [x0], v2)
""",
    "inner_loop_without_reduce": """\
@kernel(device='cpu', vector='r0')
def inner_loop_without_reduce(in0: In('float32', 6), in1: In('float32', 6*29), out0: Out('float32', 6*29)):
    for x0 in range(6):
        v0 = load(in0, [x0], 'float32')
        v1 = exp(v0)
        for r0 in reduce(29):
            v2 = load(in1, [29*x0 + r0], 'float32')
            v3 = mul(v1, v2)
            store(out0, [29*x0 + r0], v3)
""",
    "column_softmax_two_axes": """\
@kernel(device='cpu', vector='x0')
def column_softmax_two_axes(in0: In('float32', 2*3*40), out0: Out('float32', 2*3*40), out1: Out('int64', 40)):
    for x0 in range(40):
        for r0 in reduce(2):
            for r1 in reduce(3):
                v0 = load(in0, [120*r0 + 40*r1 + x0], 'float32')
                v1 = reduce('max', v0, 'float32')
                v2 = reduce('argmax', v0, 'int64')
        store(out1, [x0], v2)
        for r0 in reduce(2):
            for r1 in reduce(3):
                v3 = load(in0, [120*r0 + 40*r1 + x0], 'float32')
                v4 = sub(v3, v1)
                v5 = exp(v4)
                v6 = reduce('sum', v5, 'float32')
        for r0 in reduce(2):
            for r1 in reduce(3):
                v7 = load(in0, [120*r0 + 40*r1 + x0], 'float32')
                v8 = sub(v7, v1)
                v9 = exp(v8)
                v10 = div(v9, v6)
                store(out0, [120*r0 + 40*r1 + x0], v10)
""",
    "long_sum": """\
@kernel(device='cpu', vector='r0')
def long_sum(in0: In('float32', 300000), out0: Out('float32', 3)):
    for x0 in range(3):
        for r0 in reduce(100000):
            v0 = load(in0, [100000*x0 + r0], 'float32')
            v1 = reduce('sum', v0, 'float32')
        store(out0, [x0], v1)
""",
    "large_pointwise": """\
@kernel(device='cpu', vector='x0')
def large_pointwise(in0: In('float32', 100003), out0: Out('float32', 100003), out1: Out('bool', 100003)):
    for x0 in range(100003):
        v0 = load(in0, [x0], 'float32')
        v1 = constant(0.0, 'float32')
        v2 = maximum(v0, v1)
        v3 = lt(v1, v0)
        store(out0, [x0], v2)
        store(out1, [x0], v3)
""",
    "dropout": """\
@kernel(device='cpu', vector='x0')
def dropout(in0: In('int64', 1), in1: In('float32', 1000), out0: Out('float32', 1000)):
    for x0 in range(1000):
        v0 = load(in0, [0], 'int64')
        v1 = index_expr(x0, 'int64')
        v2 = uniform(v0, v1)
        v3 = constant(0.25, 'float32')
        v4 = le(v3, v2)
        v5 = load(in1, [x0], 'float32')
        v6 = constant(0.0, 'float32')
        v7 = where(v4, v5, v6)
        store(out0, [x0], v7)
""",
}

LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "symbolic_gather": {"in0": (0, 10)},
    "symbolic_scatter_add": {"in0": (0, 10)},
    "symbolic_scatter_add_elements": {"in0": (0, 10)},
    "symbolic_out_of_range": {"in0": (11, 20)},
    "symbolic_loss": {"in1": (0, 9)},
    "strided": {"in0": (0, 9)},
    "dropout": {"in0": (0, 1 << 40)},
    "column_softmax_two_axes": {"in0": (-3, 3)},
}
