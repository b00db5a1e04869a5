"""Generates matrix products with loops before and after them in one launch: loopir's templates
(contract T) as Triton source.

A program computes one tile of the result. The bodies of a prologue run on each tile of the operand,
between its loads and the tensor core; those of the epilogue run on the accumulator, which has more
precision than the product would have in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy
import torch
from loopir import (  # fmt: skip
    BuildError,
    Instruction,
    KernelBuffer,
    KernelSource,
    Template,
    View,
    ceil_div,
    flat_position,
    product,
    steps_of,
)

from inductor_triton.kernels import ops
from inductor_triton.kernels.codegen import (
    assemble,
    describe_launch,
    function_text,
    generate_source,
)
from inductor_triton.kernels.emitter import Emitter, Term
from inductor_triton.kernels.indexing import integer
from inductor_triton.kernels.instructions import emit_instruction
from inductor_triton.kernels.passes.gelu import fuse_gelu
from inductor_triton.kernels.reductions import persistent_reduction
from inductor_triton.spec import Config, in_order, launch_spec

from .grouped import Groups, extent_of_tiles
from .product import EIGHTHS, HALVES, Product, dtype_of, product_of
from .split_k import PARTIALS, placed, sum_of_parts
from .tile_writer import FLOAT8, J, K, M, N, R, TileWriter

GROUP = 8
"""Rows of tiles that are computed together, so that their operands stay in the cache."""
WIDEST_EPILOGUE = 128
"""Columns of a tile that the epilogue processes at once: more would not fit in registers next to
the accumulator.
"""
DESCRIPTOR = 128
"""Bytes of a tensor descriptor; each program builds its descriptors in memory that the launch
provides.
"""
LONGEST_ROUGH = 128
"""Products of float8 that the tensor cores add before the sum goes to float32, as in the library.
"""


def generate_matmul(template: Template, config: Config) -> KernelSource:
    """The Triton source of ``template`` with tiles of ``config.y`` x ``config.x`` and steps of
    ``config.r``.
    """
    found = product_of(template)
    assert found is not None, "refused before"
    if config.split > 1 and PARTIALS not in {buffer.name for buffer in template.buffers}:
        return _with_split_sum(template, found, config)
    if template.epilogue.kernel.reduction and config.x < int(found.n):
        raise BuildError(
            f"{template.name}: rows of {found.n} that are reduced fit no tile of {config.x} columns"
        )
    source = _ProductWriter(template, found, config)
    function = source.function()
    text = assemble(template.origins, config, function)
    tiles = tuple(
        (extent_of_tiles(found, d, size, block), block)
        for d, size, block in ((M, found.m, config.y), (N, found.n, config.x))
    )
    count = product((found.matrices, *(ceil_div(extent, block) for extent, block in tiles)))
    batch = sympy.Min(config.grid, count) if config.grid else found.matrices * config.split
    spec = describe_launch(source.whole, () if config.grid else tiles, batch)  # type: ignore[arg-type]
    if not source.descriptors:
        return KernelSource(template, text, (("launch", spec),))
    size = DESCRIPTOR * source.descriptors * (config.grid or integer(count) or 0)
    workspace = KernelBuffer("descriptors", torch.uint8, "out", sympy.Integer(size))
    spec = replace(spec, signature=(*spec.signature, "*u8"), workspace=True)
    part = KernelSource(
        replace(template, buffers=(*template.buffers, workspace)), text, (("launch", spec),)
    )
    return in_order(template, (part,), (workspace,))


def _with_split_sum(template: Template, found: Product, config: Config) -> KernelSource:
    """Splits the product's sum into parts that programs compute side by side, and adds a kernel
    that sums them and continues with the epilogue: for products with few tiles and long sums.
    """
    numel = config.split * found.m * found.n
    partials = KernelBuffer(PARTIALS, torch.float32, "out", numel)
    first = generate_matmul(replace(template, buffers=(*template.buffers, partials)), config)
    second = generate_source(
        sum_of_parts(template, found, replace(partials, role="in"), config.split)
    )
    return in_order(template, (first, second), (partials,))


def without_engine(part: KernelSource) -> KernelSource:
    """The same launch without the copy engine, for addresses that it can't read: they must be
    multiples of 16.
    """
    template, spec = part.kernel, launch_spec(part)
    assert isinstance(template, Template)
    plain = replace(template, buffers=template.buffers[:-1])
    source = generate_matmul(plain, replace(spec.config, tma=False))
    return KernelSource(plain, source.text, (("launch", spec),))


@dataclass(slots=True)
class _ProductWriter(TileWriter):
    """Writes the function of a template."""

    descriptors: int = 0
    engine_stores: dict[str, str] = field(default_factory=dict)

    def function(self) -> str:
        """The complete text of the function."""
        whole = self.whole
        self._start()
        whole.line("acc = tl.full([MBLOCK, NBLOCK], 0.0, tl.float32)")
        span = f"0, {self.text(self.product.k)}"
        if self.config.split > 1:
            length = int(self.product.k) // self.config.split
            span = f"share * {length}, share * {length} + {length}"
        elif self.product.ragged == K:
            span = "kbegin, kend"
        whole.line(f"for kbase in tl.range({span}, KBLOCK):")
        whole.indent += 1
        if not self.config.tma:
            self._sum_axes()
        left = self._operand(self.product.left, (M, K))
        right = self._operand(self.product.right, (J, N))
        if self.config.tf32:
            left, right = f"round_tf32({left})", f"round_tf32({right})"
        whole.line(f"acc = tl.dot({left}, {right}, acc{self._precision})")
        whole.indent -= 1
        self._end()
        return function_text(
            whole, {f"{dim.upper()}BLOCK": self.dims[dim][1] for dim in (M, N, K, J)}
        )

    @property
    def _precision(self) -> str:
        if self.product.dtype in EIGHTHS:
            if self.product.rough:
                return ""
            return f", max_num_imprecise_acc={min(self.config.r, LONGEST_ROUGH)}"
        if self.product.dtype in HALVES:
            return ""
        return ", input_precision='tf32'" if self.config.tf32 else ", input_precision='ieee'"

    def _sum_axes(self) -> None:
        whole = self.whole
        for name, place in ((K, "None, :"), (J, ":, None")):
            text = f"kbase + tl.arange(0, KBLOCK)[{place}]"
            whole.line(f"{name} = " + (f"({text}){whole.index_cast}" if whole.index_cast else text))
        for name in (K, J):
            if self.masked(name):
                whole.line(f"{name}mask = {name} < {self.limit(K)}")

    def _start(self) -> None:
        """Writes which tile a program computes, or the loop in which it walks over several."""
        whole, found, groups = self.whole, self.product, self._groups()
        if groups is not None and groups.dim != K:
            self.lines(groups.count_tiles())
        for dim, name in ((M, "rows"), (N, "columns")):
            largest = "tl.reduce(upto, 0, combine_max)"
            count = largest if dim == found.ragged else self.count(*self.dims[dim])
            whole.line(f"{name} = {count}")
        if self.config.tma:
            self._describe("left_rows", found.left, (found.m, found.k), "MK")
            self._describe("right_rows", found.right, (found.k, found.n), "KN")
            self._describe_results()
        program = "tl.program_id(0)"
        if self.config.grid:
            tiles = (
                "rows * columns"
                if found.matrices == 1
                else f"rows * columns * {self.text(found.batch)}"
            )
            whole.line(
                f"for program in tl.range({program}, {tiles}, {self.config.grid}, flatten=True):"
            )
            whole.indent += 1
            program = "program"
        elif groups is not None and groups.dim != K:
            # the launch has programs for as many tiles as the groups could need
            whole.line(f"if {program} >= rows * columns:")
            whole.line("    return")
        self._find_tile(f"{program}{whole.index_cast}", groups)

    def _find_tile(self, program: str, groups: Groups | None) -> None:
        """Writes the position of the program's tile; neighbouring programs share rows of the left
        operand.
        """
        whole, found = self.whole, self.product
        outer = "share" if self.config.split > 1 else "batch" if found.matrices != 1 else None
        whole.line(f"tile = {program} % (rows * columns)" if outer else f"tile = {program}")
        if outer:
            whole.line(f"{outer} = {program} // (rows * columns)")
        whole.line(f"first = tile // ({GROUP} * columns) * {GROUP}")
        whole.line(f"together = tl.minimum(rows - first, {GROUP})")
        row, column = (
            f"(first + tile % ({GROUP} * columns) % together)",
            f"tile % ({GROUP} * columns) // together",
        )
        for dim, place, block in ((M, row, "MBLOCK"), (N, column, "NBLOCK")):
            if groups is not None and dim == groups.dim:
                self.lines(groups.find_tile(place, whole.index_cast))
            else:
                whole.line(f"{dim}first = {place} * {block}")
        if groups is not None and groups.dim == K:
            self.lines(groups.find_part())
        whole.line("m = mfirst + tl.arange(0, MBLOCK)[:, None]")
        whole.line("n = nfirst + tl.arange(0, NBLOCK)[None, :]")
        for name in (M, N):
            if self.masked(name):
                whole.line(f"{name}mask = {name} < {self.limit(name)}")
        for name, view in (("left_bits", found.left), ("right_bits", found.right)):
            if self._is_typed(view) and not self.config.tma:
                whole.line(f"{name} = {self._typed(view)}")

    def _groups(self) -> Groups | None:
        found = self.product
        if found.ends is None:
            return None
        view, (extent, _) = found.ends, self.dims[found.ragged]
        start = self.whole.name(view.buffer) + (
            f" + {self.text(view.offset)}" if view.offset != 0 else ""
        )
        return Groups(
            found.ragged, int(found.batch), start, self.text(view.stride[0]), self.text(extent)
        )

    def _is_typed(self, view: View) -> bool:
        """Whether an operand is read as float8; all other instructions read it as bytes."""
        return dtype_of(self.template, view) in FLOAT8 and view.buffer not in dict(
            self.template.prologues
        )

    def _typed(self, view: View) -> str:
        kind = FLOAT8[dtype_of(self.template, view)]
        return f"{self.whole.name(view.buffer)}.to(tl.pointer_type({kind}), bitcast=True)"

    def _describe(
        self, name: str, view: View, sizes: tuple[sympy.Expr, sympy.Expr], dims: str
    ) -> None:
        """Writes an operand's tensor descriptor, through which the copy engine fetches tiles; the
        matrices of groups share one.
        """
        steps = view.stride[-2:]
        order = (0, 1) if steps[1] == 1 else (1, 0)
        many = view.shape[0] if len(view.shape) == 3 else sympy.Integer(1)
        extents = f"{sizes[order[0]] * many}, {sizes[order[1]]}"
        blocks = ", ".join(f"{dims[d]}BLOCK" for d in order)
        base = self._typed(view) if self._is_typed(view) else self.whole.name(view.buffer)
        start = base + (f" + {view.offset}" if view.offset != 0 else "")
        made = (
            f"tl.make_tensor_descriptor({start}, [{extents}], [{steps[order[0]]}, 1], [{blocks}])"
        )
        self.whole.line(f"{name} = {made}")
        self.descriptors += 1

    def _describe_results(self) -> None:
        """Writes descriptors of the results that are whole matrices: the copy engine stores them
        while the next tile is computed.
        """
        kernel = self.template.epilogue.kernel
        bodies, _ = placed(self.template.epilogue, self.template, "")
        place = flat_position(kernel.ranges)
        buffers = {buffer.name: buffer for buffer in self.template.buffers}
        for step in steps_of(bodies):
            if (
                step.op != "store"
                or step.args[3] is not None
                or sympy.expand(step.args[1] - place) != 0
            ):  # type: ignore[operator]
                continue
            result = str(step.args[0])
            if self.product.ragged or int(self.product.n) * buffers[result].dtype.itemsize % 16:
                continue
            name = self.engine_stores[result] = self.whole.fresh(f"{result}_rows")
            sizes = (
                f"[{self.product.m}, {self.product.n}], [{self.product.n}, 1], [MBLOCK, "
                f"{self._width}]"
            )
            self.whole.line(
                f"{name} = tl.make_tensor_descriptor({self.whole.name(result)}, {sizes})"
            )
            self.descriptors += 1

    @property
    def _width(self) -> int:
        """The number of columns that the epilogue processes at once."""
        return min(self.config.x, WIDEST_EPILOGUE)

    def _fetched(self, view: View, dims: tuple[str, str]) -> str:
        """A load of an operand's tile through its descriptor; zero beyond the ends."""
        name, places = (
            ("left_rows", ["mfirst", "kbase"]) if K in dims else ("right_rows", ["kbase", "nfirst"])
        )
        turned = view.stride[-1] != 1
        places = places[::-1] if turned else places
        if len(view.shape) == 3:
            places[0] = f"batch * {view.shape[1 + turned]} + {places[0]}"
        return f"{name}.load([{', '.join(places)}])" + (".T" if turned else "")

    def _end(self) -> None:
        """Writes the epilogue, on a wide tile one half after the other; if the sum is split, only
        stores the partial sum.
        """
        if self.config.split > 1:
            place = (
                f"(share{self.whole.index_cast} * {self.text(self.product.m)} + m) * "
                f"{self.text(self.product.n)} + n"
            )
            masks = " & ".join(f"{dim}mask" for dim in (M, N) if self.masked(dim))
            self.whole.line(
                f"tl.store({self.whole.name(PARTIALS)} + {place}, "
                f"acc{f', mask={masks}' if masks else ''})"
            )
            return
        if self.config.x <= WIDEST_EPILOGUE or self.template.epilogue.kernel.reduction:
            self._epilogue("acc", "", self.config.x)
            return
        width = self.config.x // 2
        self.whole.line(
            f"left, right = tl.split(tl.permute(tl.reshape(acc, (MBLOCK, 2, {width})), (0, 2, 1)))"
        )
        for number, half in enumerate(("left", "right")):
            offset = f"{number * width} + " if number else ""
            self.whole.line(f"n = nfirst + {offset}tl.arange(0, {width})[None, :]")
            if self.masked(N):
                self.whole.line(f"nmask = n < {self.limit(N)}")
            self._epilogue(half, str(number), width, f" + {number * width}" if number else "")

    def _epilogue(self, accumulator: str, suffix: str, width: int, offset: str = "") -> None:
        kernel = self.template.epilogue.kernel
        dims = (M, R if kernel.reduction else N)
        if kernel.reduction and self.masked(N):
            self.whole.line("rmask = nmask")
        bodies, result = placed(self.template.epilogue, self.template, f"e{suffix}_")
        emitter = self.stage(kernel, fuse_gelu(bodies, self.template.dtypes), dims, width)
        steps = emitter.plan.steps
        value = self._with_bias(accumulator, emitter, width)
        loads = {str(step.result) for step in steps if step.op == "load" and step.args[0] == result}
        wide = all(_reads_wide(step, loads) for step in steps)
        dtype = self.template.epilogue.tensor.dtype
        term = Term(value, frozenset(dims), torch.float32)
        if not wide and dtype is not torch.float32:
            name = self.whole.fresh("rounded")
            self.whole.line(f"{name} = {ops.cast(value, torch.float32, dtype)}")
            term = Term(name, frozenset(dims), dtype)
        emitter.values |= dict.fromkeys(loads, term)
        for body in emitter.plan.bodies:
            before = dict(emitter.values)
            rest = replace(
                body,
                instructions=tuple(
                    step for step in body.instructions if str(step.result) not in loads
                ),
            )
            emitter.body_dims = frozenset(dims if body.inner or not kernel.reduction else (M,))
            if body.inner:
                emitter.values = before | persistent_reduction(emitter, rest)
                continue
            for step in rest.instructions:
                self._emit(emitter, step, term, offset)

    def _emit(self, emitter: Emitter, step: Instruction, whole: Term, offset: str) -> None:
        if step.op != "store" or step.args[0] not in self.engine_stores:
            emit_instruction(emitter, step)
            return
        stored = emitter.operand(step.args[2])
        text = emitter.expanded(stored.text, stored.dims, whole.dims)
        self.whole.line(
            f"{self.engine_stores[str(step.args[0])]}.store([mfirst, nfirst{offset}], {text})"
        )

    def _with_bias(self, accumulator: str, emitter: Emitter, width: int) -> str:
        """The accumulator with its scales and the bias that addmm adds."""
        found = self.product
        if found.bias is None and found.alpha == 1 and not found.scales:
            return accumulator
        text = accumulator if found.alpha == 1 else f"{accumulator} * {float(found.alpha)!r}"
        if found.scales:
            text = f"{text} * ({' * '.join(self.spread(view) for view in found.scales)})"
        if found.bias is not None and found.beta != 0:
            bias = self.spread(found.bias)
            scale = "" if found.beta == 1 else f" * {float(found.beta)!r}"
            text = f"{text} + {bias}.to(tl.float32){scale}"
        name = self.whole.fresh("sum")
        self.whole.line(f"{name} = {text}")
        return name

    def _operand(self, view: View, dims: tuple[str, str]) -> str:
        """The variable with an operand's tile, which is zero beyond the end of the sum."""
        summed = K if K in dims else J
        stage = dict(self.template.prologues).get(view.buffer)
        name = self.whole.fresh("left_tile" if K in dims else "right_tile")
        dtype = dtype_of(self.template, view)
        if self.config.tma:
            self.whole.line(f"{name} = {self._fetched(view, dims)}")
            return name
        if stage is None:
            places = ["batch" if self.product.batch != 1 else None, *dims][-len(view.shape) :]
            base = (
                ("left_bits" if K in dims else "right_bits")
                if self._is_typed(view)
                else self.whole.name(view.buffer)
            )
            self.whole.line(
                f"{name} = "
                f"{self.load(base, self.position(view, places), dims, zero=self.masked(summed))}"
            )
            return name
        bodies, result = placed(stage, self.template, f"{'a' if K in dims else 'b'}_")
        emitter = self.stage(stage.kernel, bodies, dims, None)
        for step in emitter.plan.steps:
            if step.op == "store" and step.args[0] == result:
                term = emitter.operand(step.args[2])
                text = emitter.expanded(term.text, term.dims, frozenset(dims))
                text = ops.cast(text, term.dtype, dtype)
                zero = "0" if dtype in FLOAT8 else "0.0"
                zeros = f"tl.where({summed}mask, {text}, {zero})" if self.masked(summed) else text
                bits = f".to({FLOAT8[dtype]}, bitcast=True)" if dtype in FLOAT8 else ""
                self.whole.line(f"{name} = {zeros}.to({ops.TRITON_DTYPES[dtype]}){bits}")
            else:
                emit_instruction(emitter, step)
        return name


def _reads_wide(step: Instruction, products: set[str]) -> bool:
    """Whether an instruction reads the product in float32, so that it need not be rounded first."""
    return products.isdisjoint(step.reads) or (step.op == "cast" and step.dtype is torch.float32)
