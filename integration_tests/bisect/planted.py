"""Sixty wrong rewrites, one line each, ten per layer, and for each a program that it makes wrong.

``expected``: what a search has to name, as its decision or among the nodes that are left; any of
the texts.
"""

from __future__ import annotations

from dataclasses import dataclass

BD, AG, PR, LI, IC = (
    "bytecode_dynamo",
    "aotgrad",
    "primops.decompositions",
    "loopir",
    "inductor_cpp",
)


@dataclass(frozen=True)
class Planted:
    """A wrong rewrite.

    Attributes:
        name: for reports.
        layers: what a search has to say; one of them.
        module: where ``before`` stands once, and ``after`` takes its place.
        expected: of these, one has to be named.
        program: the lines of a function of ``x`` (8, 16) and ``w`` (8, 16), both of which require
            grad.
    """

    name: str
    layers: tuple[str, ...]
    module: str
    before: str
    after: str
    expected: tuple[str, ...]
    program: str


HEAD = """
import torch
import torch.nn.functional as F
import torchstrata

torch.manual_seed(0)
x = torch.randn(8, 16, requires_grad=True)
w = torch.randn(8, 16, requires_grad=True)
big = torch.randn(512, 600, requires_grad=True)
"""
TAIL = """
out = f(x, w)
parts = out if isinstance(out, tuple) else (out,)
losses = [part.float().square().mean() for part in parts if part.requires_grad]
if losses:
    sum(losses).backward()
"""


def script(planted: Planted) -> str:
    """The program of a bug."""
    body = "".join(f"    {line}\n" for line in planted.program.strip().splitlines())
    return f"{HEAD}\n\n@torchstrata.compile\ndef f(x, w):\n{body}\n{TAIL}"


def _capture(
    name: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name, ("capture",), f"{BD}.{module}", before, after, tuple(expected.split()), program
    )


CAPTURE = [
    _capture("operands swap", "builtins.operators",
        "return call_torch(ctx, target, [left, right])", "return call_torch(ctx, target, [right, left])",
        "BINARY_OP", "y = x * 2\nreturn (y - w).relu()"),
    _capture("negation is lost", "builtins.operators",
        "return call_torch(ctx, function, [value])", "return value",
        "UNARY_NEGATIVE", "y = (-x).exp()\nreturn y * w"),
    _capture("comparison swaps", "tracing.opcodes.operators",
        "result = compare(ctx, instruction.arg.operator, left, right)",
        "result = compare(ctx, instruction.arg.operator, right, left)",
        "COMPARE_OP", "mask = x > w\nreturn torch.where(mask, x, 0.0) + w"),
    _capture("unpacking reverses", "tracing.opcodes.containers",
        "    items = unpack_exactly(ctx, frame.stack.pop(), instruction.arg)\n    frame.stack += reversed(items)",
        "    items = unpack_exactly(ctx, frame.stack.pop(), instruction.arg)\n    frame.stack += items",
        "UNPACK_SEQUENCE", "a, b = x.chunk(2)\nreturn a - 2 * b"),
    _capture("slices begin at 0", "tracing.opcodes.containers",
        "frame.push(SliceVariable((start, stop, step[0] if step else NONE)))",
        "frame.push(SliceVariable((NONE, stop, step[0] if step else NONE)))",
        "BUILD_SLICE BINARY_SUBSCR BINARY_SLICE", "y = x[2:6] * 3\nreturn y.sum(0)"),
    _capture("jumps the other way", "tracing.opcodes.jumps",
        "if holds is (instruction.op is Op.POP_JUMP_IF_TRUE):",
        "if holds is not (instruction.op is Op.POP_JUMP_IF_TRUE):",
        "POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE", "y = x + w\nif y.shape[0] > 4:\n    y = y * 3\nreturn y"),
    _capture("membership is inverted", "tracing.opcodes.operators",
        "frame.push(ConstantVariable(container.contains(ctx, item) != bool(instruction.arg)))",
        "frame.push(ConstantVariable(container.contains(ctx, item) == bool(instruction.arg)))",
        "CONTAINS_OP", "y = x.sin()\nreturn y + w if 'a' in {'a': 1} else y"),
    _capture("repetition once more", "builtins.operators",
        "repeated = items.elements(ctx) * count", "repeated = items.elements(ctx) * (count + 1)",
        "BINARY_OP", "parts = [x] * 2\nreturn torch.cat(parts).sum(0) + w"),
    _capture("joining in the wrong order", "builtins.operators",
        "(*left.elements(ctx), *right.elements(ctx))", "(*right.elements(ctx), *left.elements(ctx))",
        "BINARY_OP", "parts = [x] + [w * 2]\nreturn torch.cat(parts).cumsum(0)"),
    _capture("in-place becomes a copy", "builtins.operators",
        "target = in_place_function if in_place and isinstance(left, TensorVariable) else function",
        "target = function",
        "BINARY_OP", "y = x * 2\nz = y\nz += w\nreturn y.exp()"),
]  # fmt: skip


def _autograd(
    name: str, layers: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name,
        tuple(layers.split()),
        f"{AG}.{module}",
        before,
        after,
        tuple(expected.split()),
        program,
    )


AUTOGRAD = [
    _autograd("twice is once", "pattern", "graphs.passes",
        "((aten.mul, 1), (aten.div, 1), (aten.sub, 0))", "((aten.mul, 2), (aten.div, 1), (aten.sub, 0))",
        "simplify", "y = (x * 2).sin()\nreturn y + w"),
    _autograd("extremum elsewhere", "pattern", "graphs.passes",
        "aten.where.ScalarOther, (mask, share, 0)", "aten.where.ScalarOther, (mask, share, 1)",
        "mask_extremum_gradients", "return x.max() + w.sum()"),
    _autograd("stacks unbind to the first", "pattern", "graphs.passes",
        "source = stack.args[0][item.args[1]]", "source = stack.args[0][0]",
        "forward_unbound_stacks", "a, b = torch.stack([x + 1, w * 3]).unbind()\nreturn a - 2 * b"),
    _autograd("near numbers are equal", "pattern", "graphs.passes",
        "return (float, value.hex())", "return (float, int(value))",
        "simplify", "return (x * 1.25).exp() + (x * 1.75).sin() + w"),
    _autograd("constants one too large", "pattern", "graphs.constants",
        "value = target(*args, **kwargs)", "value = target(*args, **kwargs) + 1",
        "simplify", "return x * (torch.ones(3) * 2).sum() + w"),
    _autograd("normalised again around -mean", "partition", "graphs.rematerialise",
        "build(aten.mul.Tensor, build(aten.sub.Tensor, x, mean), scale)",
        "build(aten.mul.Tensor, build(aten.add.Tensor, x, mean), scale)",
        "min_cut", "y = F.layer_norm(x * 3 + 1, (16,))\nz = torch.sigmoid(y @ w.t())\nreturn z @ w + y"),
    _autograd("gradients in reverse", "partition", "graphs.split",
        "graph.output(tuple(env[g] for g in gradients))",
        "graph.output(tuple(env[g] for g in reversed(gradients)))",
        "mul sin cos", "return x.sin() * w"),
    _autograd("tangents before what is kept", "partition", "graphs.split",
        "for node in (*sizes, *saved, *view.joint.tangents):", "for node in (*sizes, *view.joint.tangents, *saved):",
        "mul sin", "return x.sin() * w"),
    _autograd("the next polygamma", "functionalisation", "tracing.functional_ops",
        "torch.polygamma(n, self.clone())", "torch.polygamma(n + 1, self.clone())",
        "polygamma_", "y = x.detach().abs() + 1\ny.polygamma_(1)\nreturn y * w"),
    _autograd("unit gradients of two", "partition", "graphs.unit_tangent",
        "aten.full.default, ([], 1)", "aten.full.default, ([], 2)",
        "with_unit_gradients", "return F.cross_entropy(big, torch.arange(512) % 7)"),
]  # fmt: skip


def _decomposition(
    name: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name, ("decomposition",), f"{PR}.{module}", before, after, tuple(expected.split()), program
    )


DECOMPOSITION = [
    _decomposition("gelu", "activation", "prims.mul(prims.mul(self, 0.5), prims.add(inner, 1))",
        "prims.mul(prims.mul(self, 0.25), prims.add(inner, 1))", "aten.gelu", "return F.gelu(x) @ w.t()"),
    _decomposition("softmax backward", "normalization", "prims.mul(prims.sub(grad, total), y)",
        "prims.mul(prims.add(grad, total), y)", "aten._softmax_backward_data", "return (x.softmax(1) * w).sum(1)"),
    _decomposition("log softmax", "normalization", "total = prims.log(prims.sum(prims.exp(shifted), dims=dims))",
        "total = prims.log1p(prims.sum(prims.exp(shifted), dims=dims))", "aten._log_softmax", "return x.log_softmax(1) + w"),
    _decomposition("mean", "reduction", "prims.div(reduce(prims.sum, wide, dim, keepdim), count(self, dims))",
        "prims.mul(reduce(prims.sum, wide, dim, keepdim), count(self, dims))", "aten.mean", "return (x + w).mean(1).tanh()"),
    _decomposition("leaky relu", "activation", "prims.where(prims.gt(a, 0), value, prims.mul(value, slope))",
        "prims.where(prims.lt(a, 0), value, prims.mul(value, slope))", "aten.leaky_relu", "return F.leaky_relu(x, 0.1) + w"),
    _decomposition("elu", "activation", "negative = prims.mul(prims.expm1(prims.mul(self, input_scale)), alpha * scale)",
        "negative = prims.mul(prims.exp(prims.mul(self, input_scale)), alpha * scale)", "aten.elu", "return F.elu(x) * w"),
    _decomposition("squared error", "loss", "    return prims.mul(difference, difference)", "    return prims.mul(difference, 2)",
        "aten.mse_loss", "return F.mse_loss(x.sin(), w)"),
    _decomposition("transpose", "view", "order[dim0], order[dim1] = dim1, dim0", "order[dim0], order[dim1] = dim0, dim1",
        "aten.transpose", "y = x[:, :8].exp()\nreturn y.transpose(0, 1) + w[:, :8]"),
    _decomposition("both extremes", "reduction", "return amin(self, dim, keepdim), amax(self, dim, keepdim)",
        "return amax(self, dim, keepdim), amin(self, dim, keepdim)", "aten.aminmax", "a, b = torch.aminmax(x.detach() * 2, dim=1)\nreturn a * w[:, 0] + b"),
    _decomposition("hardtanh", "activation", "prims.minimum(prims.maximum(a, min_val), max_val)",
        "prims.maximum(prims.maximum(a, min_val), max_val)", "aten.hardtanh", "return F.hardtanh(x) + w"),
]  # fmt: skip


def _lowering(
    name: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name,
        ("lowering",),
        f"{LI}.lowering.{module}",
        before,
        after,
        tuple(expected.split()),
        program,
    )


LOWERING = [
    _lowering("greater is at most", "elementwise", 'SWAPPED = {"gt": "lt", "ge": "le"}', 'SWAPPED = {"gt": "le", "ge": "le"}',
        "gt", "y = x.round()\nreturn torch.where(y > 0, w, y)"),
    _lowering("sign", "elementwise", "ops.sub(ops.cast(ops.lt(zero, a), dtype)", "ops.add(ops.cast(ops.lt(zero, a), dtype)",
        "sign", "return x.sign() * w.exp()"),
    _lowering("arc", "elementwise", 'if op == "asin" else', 'if op == "acos" else', "asin acos", "return torch.asin(x.tanh()) + w"),
    _lowering("permute", "view", "places = [list(dims).index(d) for d in range(len(dims))]", "places = list(dims)",
        "permute", "y = (x * 2).view(8, 8, 2).permute(2, 0, 1).exp()\nreturn y[:, :, :2].sum(2).t() + w[:, :2]"),
    _lowering("slice", "view", "begin + index[dim] * pace,", "begin + index[dim],", "slice", "return (x.sin() * 2)[::2] + w[::2]"),
    _lowering("flip", "view", "lambda index: tuple(shape[d] - 1 - i if d in dims else i for d, i in enumerate(index)),",
        "lambda index: tuple(shape[d] - 1 - i if d not in dims else i for d, i in enumerate(index)),",
        "flip", "return (x + 1).sin().flip(0) * w"),
    _lowering("cumulative products are sums", "reduction", 'node.target.name.removeprefix("cum")', '"sum"',
        "cumprod", "return x.cumprod(1) + w"),
    _lowering("two stages", "reduction", "position = outer_index[0] * chunk + inner_index[place]",
        "position = outer_index[0] + inner_index[place]", "split sum", "big = (torch.arange(131072).view(512, 256) * 0.01).sin()\nreturn (big * x.sum()).sum() + w"),
    _lowering("window", "view", "[sympy.expand(s * step) if d == dim else s for d, s in enumerate(a.stride)]\n        return strided(a, shape, [*stride, a.stride[dim]])",
        "[s if d == dim else s for d, s in enumerate(a.stride)]\n        return strided(a, shape, [*stride, a.stride[dim]])",
        "window", "return x.unfold(1, 4, 2).sum(2) + w[:, :7]"),
    _lowering("added is written", "indexing", 'mode = "add" if add else None', "mode = None",
        "index_put scatter_add", "y = torch.zeros(8, 16).index_add(0, torch.tensor([1, 1, 2, 3]), x[:4].sin())\nreturn y + w"),
]  # fmt: skip


def _fusion(
    name: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name,
        ("fusion",),
        f"{LI}.schedule.{module}",
        before,
        after,
        tuple(expected.split(";")),
        program,
    )


FUSION = [
    _fusion("points read other points", "fusion", "if len(both) != 1 or next(iter(both))[1]:", "if False:",
        "fuse", "y = x.sum(1)\nreturn y.flip(0).exp() * w[:, 0]"),
    _fusion("parts without steps", "align", "self.substitution[self.current] + part * self.step", "self.substitution[self.current] + part",
        "fuse", "y = x.exp().view(-1)\ns = y.sum()\nreturn (y / s).view(8, 16) + w"),
    _fusion("written while it is read", "memory", "is_free = last < position or (", "is_free = last <= position or (",
        "write in place", "v = w.detach()\nv.copy_(v.flip(0) * 2)\nreturn x * 2"),
    _fusion("sums begin at one", "column_sums", 'Instruction("zero", "constant", (0.0,), torch.float32)',
        'Instruction("zero", "constant", (1.0,), torch.float32)', "add sums to rows",
        "y = F.layer_norm(x.repeat(32, 2), (32,), w.view(-1)[:32], w.view(-1)[32:64])\nreturn y.sin()"),
    _fusion("in place at other points", "memory", "return len(indices) == 1 and not _is_used_later(kernel, names, source, target)",
        "return not _is_used_later(kernel, names, source, target)", "reuse memory;write in place",
        "y = x @ w.t()\nreturn (y.t() * 2).contiguous()"),
    _fusion("stores are dropped", "build", "remove_dead(blocks, external | loaded)", "remove_dead(blocks, loaded)",
        "fuse;sum;exp", "y = x.exp()\nreturn y, y.sum(1) + w[:, 0]"),
    _fusion("loops that differ merge", "order", "if sympy.expand(a - b * inner.extent) != 0:", "if False:",
        "add;permute", "return x.t().contiguous() + w.view(16, 8)"),
    _fusion("epilogues too early", "build", "slot + 1 if item.epilogue else slot", "slot",
        "fuse", "y = x.exp()\nreturn y / y.sum(1, keepdim=True) + w"),
    _fusion("any memory fits", "memory", "return buffer.dtype, buffer.device, sympy.expand(product(buffer.shape)), buffer.numel",
        "return buffer.dtype, buffer.device", "reuse memory",
        "y = x @ w.t()\nz = y @ y\nv = torch.linalg.inv(z + 9 * torch.eye(8))\nreturn (v.sum(1, keepdim=True) * x).cumsum(1) + w"),
    _fusion("values of other steps", "recorder", "self._known[key] = value\n        self.append", "self._known[(op,)] = value\n        self.append",
        "fuse;exp;sin", "return x.exp().sin() * w"),
]  # fmt: skip


def _generator(
    name: str, module: str, before: str, after: str, expected: str, program: str
) -> Planted:
    return Planted(
        name,
        ("code generation",),
        f"{IC}.kernels.{module}",
        before,
        after,
        tuple(expected.split(";")),
        program,
    )


GENERATORS = [
    _generator("subtraction", "elementwise", '"sub": "-"', '"sub": "+"', "sub", "return (x - w).sin()"),
    _generator("negation", "elementwise", 'f"(- {args[0]})"', 'f"({args[0]})"', "neg", "return (-x).exp() * w"),
    _generator("largest is least", "collective", '"max": "greatest"', '"max": "least"', "max;amax", "return x.amax(1) * w[:, 0]"),
    _generator("place of the other extreme", "collective", '"argmax": "true"', '"argmax": "false"', "argmax", "return x.argmax(1) + w[:, 0]"),
    _generator("remainder is fmod", "elementwise", '_call("remainder_of")', '_call("fmod_of")', "remainder", "return torch.remainder(x, 0.7) + w"),
    _generator("indices without steps", "instructions", "iota<W>({base}, {e.index(stride)})", "iota<W>({base}, 1)",
        "index_expr;iota", "return x * torch.arange(0, 48, 3) + w"),
    _generator("products are sums", "collective", '"prod": "times"', '"prod": "plus"', "prod", "return x.prod(1) + w[:, 0]"),
    _generator("every second element is the next", "memory_access", '2: "load_even"', '2: "load"', "load;slice;add;sin", "return x[:, ::2].sin() + w[:, ::2]"),
    _generator("additions are stores", "memory_access", '    if mode == "add":\n        target.add(_add_vector', '    if mode == "never":\n        target.add(_add_vector',
        "store;index_put;scatter_add", "y = torch.zeros(8, 16).index_add(0, torch.tensor([1, 1, 2, 3]), x[:4].sin())\nreturn y + w"),
    _generator("numbers are negated", "dtypes", 'else f"{number}ll"', 'else f"{-number}ll"',
        "constant;add;mul", "y = (x * 10).long()\nreturn y * 3 + 5 + w"),
]  # fmt: skip

PLANTED = [*CAPTURE, *AUTOGRAD, *DECOMPOSITION, *LOWERING, *FUSION, *GENERATORS]
