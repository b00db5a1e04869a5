"""Chooses block sizes and warps without measuring.

Measured on an H200 (share of copy bandwidth, one kernel at a time): 16 bytes of the widest type per
thread and 4 warps reach the limit for pointwise kernels; twice as many bytes hide long arithmetic;
one row per program beats a persistent loop over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor_triton.spec import Config

MULTIPROCESSORS = 132
LONG_ARITHMETIC, LONG_COLUMNS, LONG_ROWS = 28, 30, 40
MANY_OPERANDS = 17
"""Operations of a pointwise kernel without long ones beyond which a block is twice as large: so
many operations can be loads and casts alone.
"""
VERY_LONG, BYTES_OF_VERY_LONG = 200, 8
"""Operations of a pointwise kernel beyond which registers are scarce, and the bytes of the widest
type per thread then. An equation of state with 400 operations takes 95 registers at two numbers of
32 bits, 183 at four, and spills at eight.
"""
PERSISTENT_BYTES = 32768
STREAM_BYTES = 8192
REREAD_BLOCK = 4096
HELD_ROW = 40960
KEPT_BYTES = 57344, 106496
"""Range of row sizes in bytes for which one row fits the registers of 16 warps while the next two
are loaded into shared memory.
"""
WIDE_BYTES = 90112
"""Bytes of a row beyond which eight warps are faster than sixteen.

On an H200, a cross entropy of 50304 takes 429 us, not 433 (one of 40960 would take 356, not 350),
and 2 us less if a second half of the programs queues behind the first: a program that ends early is
replaced by the next.
"""
CROSSED_ROWS = 8
LONGEST_CROSSED = 2048
CROSSED_BLOCK = 128
"""Rows per program of a row reduction one of whose operands is read across the rows, the longest
row that stays in registers, and the block of longer ones. Neighbouring rows share the memory
transactions of that operand.

On an H200, a softmax over 96 x 512 rows of 512, with scores gathered across the rows, takes 132 us
with 8 rows in registers, 155 with 4, 190 with 16, 232 with 8 rows in blocks of 128, and 565 with
128 rows in blocks of 8.
"""
SHORTEST_CROSSED = 64
VECTOR_BYTES, SHORTEST_VECTOR = 4096, 512
"""Bytes of a row that a program of the product of a matrix and a vector reads at a time, and the
shortest sum of such a product: two rows share what the program reads of the vector.
"""
TILE_ELEMENTS = 2048
ROWS_PER_PROGRAM = 4
SHORT_COLUMN = 1024
FEW_ELEMENTS = 2**18
"""Elements up to which the latency of a column reduction's loads matters, not their number."""
TILE_ROWS = 128
"""Rows in a block of columns that stays in registers between two passes, and in a chunk of split
columns.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """The properties of a kernel on which the choice depends; sizes are those of the hints.

    ``itemsize`` is that of the widest type that is loaded or stored along the rows. ``scans``:
    whether the kernel scans along the rows; ``adds``: whether it adds to sums over the rows;
    ``gathers``: whether it reads rows at indices from memory; ``draws``: whether it draws random
    numbers. ``passes`` is the number of passes over a row longer than one block; ``row_bytes`` the
    bytes of a row that several passes read, 0 if registers could not hold them. ``crosses``:
    whether some operand is read across its rows, so that neighbours of a row share its memory
    transactions; ``shares``: the number of operands that each row has for itself, where all rows
    read the same elements of another one, else 0.
    """

    points: int
    reduction: int
    itemsize: int
    operations: int
    inner_contiguous: bool = True
    static: bool = True
    passes: int = 1
    long_arithmetic: bool = False
    scans: bool = False
    adds: bool = False
    gathers: bool = False
    row_bytes: int = 0
    draws: bool = False
    crosses: bool = False
    shares: int = 0


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value`` and at least 1."""
    return 1 << max(0, value - 1).bit_length()


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def pointwise(work: Workload) -> Config:
    """A flat block of points."""
    block = 128 * max(1, 16 // work.itemsize)
    if work.operations > (LONG_ARITHMETIC if work.long_arithmetic else MANY_OPERANDS):
        block *= 2
    if work.operations > VERY_LONG:
        block = 128 * max(1, BYTES_OF_VERY_LONG // work.itemsize)
    while block > 128 and work.points < 2 * MULTIPROCESSORS * block:
        block //= 2
    block = min(block, max(16, next_power_of_two(work.points)))
    return Config(x=block, num_warps=_clamp(block // 32, 1, 4))


def tiled(work: Workload) -> Config:
    """A square tile, both sides of which fill memory transactions."""
    side = 64 if work.itemsize <= 4 else 32
    return Config(x=side, y=side, num_warps=_clamp(side * side // 256, 1, 8))


def reduction(work: Workload) -> Config:
    """One or more rows per program if the reduction is contiguous, else adjacent columns."""
    return _row_reduction(work) if work.inner_contiguous else _column_reduction(work)


def _row_reduction(work: Workload) -> Config:
    length = next_power_of_two(work.reduction)
    if work.crosses and length > SHORTEST_CROSSED and not (work.scans or work.adds):
        block = length if work.static and length <= LONGEST_CROSSED else CROSSED_BLOCK
        rows = _clamp(next_power_of_two(work.points // (2 * MULTIPROCESSORS)), 1, CROSSED_ROWS)
        warps = _clamp(rows * block // 1024, 1, 16)
        return Config(x=rows, r=block, persistent=block == length, num_warps=warps)
    is_once = work.passes == 1 and not (work.scans or work.adds)
    is_wide = work.points >= MULTIPROCESSORS and work.reduction >= SHORTEST_VECTOR
    if work.shares and is_once and is_wide:
        return _vector_product(work, length)
    persistent = work.static and work.reduction > 0 and length * work.itemsize <= PERSISTENT_BYTES
    is_long = work.operations > LONG_ROWS
    is_kept = is_long and work.itemsize == 2 and KEPT_BYTES[0] <= work.row_bytes <= KEPT_BYTES[1]
    if is_kept and work.points >= 2 * ROWS_PER_PROGRAM * MULTIPROCESSORS:
        warps, shares = (8, 2) if work.row_bytes > WIDE_BYTES else (16, 1)
        return Config(x=1, r=4096, num_warps=warps, grid=shares * MULTIPROCESSORS)
    # Data that is read once need not stay in registers: few warps with several blocks in flight are
    # faster.
    is_stream = is_once and length * work.itemsize >= STREAM_BYTES
    # Wide rows with cheap passes are read again instead of kept in registers: eviction hints tell
    # the cache when it may drop them.
    is_reread = (
        work.itemsize == 4 and work.reduction % REREAD_BLOCK == 0 and not work.long_arithmetic
    )
    if (
        persistent
        and is_reread
        and work.passes > 1
        and not work.scans
        and not work.adds
        and work.points >= MULTIPROCESSORS
    ):
        return Config(x=1, r=REREAD_BLOCK, num_warps=16)
    if not persistent or is_stream:
        return _row_loop(work, length)
    rows = 1
    if work.reduction < 512:
        rows = min(
            TILE_ELEMENTS // length, next_power_of_two(max(1, work.points // (2 * MULTIPROCESSORS)))
        )
        rows = _clamp(rows, 1, next_power_of_two(work.points))
    per_warp = 32 * (32 if work.itemsize <= 2 else 16)
    if work.points < MULTIPROCESSORS:
        per_warp //= 4  # a row's time counts, not how many fit the device at once
    most = 8 if work.scans else 16
    return Config(
        x=rows, r=length, persistent=True, num_warps=_clamp(rows * length // per_warp, 1, most)
    )


def _vector_product(work: Workload, length: int) -> Config:
    """Two rows per program, of one operand or of two, so that it has the vector for both, whole if
    they are short.
    """
    block = min(length, VECTOR_BYTES // work.itemsize)
    rows = _clamp(next_power_of_two(work.points // MULTIPROCESSORS), 1, 1 if work.shares > 1 else 2)
    is_whole = work.static and block == length
    each = VECTOR_BYTES // 2 if is_whole else VECTOR_BYTES
    warps = rows * min(work.shares, 2) * block * work.itemsize // each
    return Config(x=rows, r=block, persistent=is_whole, num_warps=_clamp(warps, 1, 4))


def _row_loop(work: Workload, length: int) -> Config:
    """One row per program, read in a loop over blocks."""
    if work.points < MULTIPROCESSORS:
        warps, each = 32, 1
    elif work.passes == 1 and work.long_arithmetic:
        warps, each = 4, 16 // work.itemsize
    elif work.passes == 1:
        warps, each = _clamp(length // 512, 4, 16), 8
    else:
        # More warps per row mean fewer rows at a time, so a second pass hits the cache.
        # the end of the row then stays in registers
        is_held = work.static and work.reduction >= HELD_ROW
        half = 8 if is_held and work.operations > LONG_ROWS else 16
        warps = 32 if work.itemsize > 2 else half
        each = 8 if is_held else max(4, 16 // work.itemsize)
    block = max(min(length, warps * 32 * each), 16)
    if work.passes == 1 and work.static and work.reduction == 2 * block and warps == 16:
        block *= 2
    return Config(x=1, r=block, num_warps=_clamp(block // 32, 1, warps))


def walking_grid(config: Config, points: int, bytes_per_element: int) -> int:
    """The number of programs that walk over rows, several rows each: as many as are resident at
    once, 0 if there are too few rows.
    """
    resident = 1 if bytes_per_element > 2 else 2
    return min(resident * MULTIPROCESSORS, points // (config.x * ROWS_PER_PROGRAM))


def _column_reduction(work: Workload) -> Config:
    length = next_power_of_two(work.reduction)
    is_long = work.operations > LONG_COLUMNS
    is_wide = is_long and work.long_arithmetic
    if (
        work.static
        and length > 32
        and work.reduction * work.points <= FEW_ELEMENTS
        and not is_wide
        and not work.gathers
    ):
        return _few_columns(work, length)
    columns = _clamp(
        next_power_of_two(work.points), 1, 64 if not is_wide else 128 if work.points % 256 else 256
    )
    while (
        work.reduction <= SHORT_COLUMN
        and columns > 16
        and work.points < 2 * MULTIPROCESSORS * columns
    ):
        columns //= 2
    if (
        work.static
        and 0 < work.reduction <= TILE_ROWS
        and not (is_wide or work.gathers or work.scans)
    ):
        return _tile_of_columns(work, min(columns, 64), length)
    persistent = work.static and work.reduction > 0 and length <= 32
    # With many operands, long arithmetic or narrow types, few elements per program leave room for
    # other programs' loads.
    is_small = is_long or (work.itemsize <= 2 and not work.gathers)
    rows = length if persistent else min(length, TILE_ELEMENTS // columns // (2 if is_small else 1))
    # The loads of a gather wait for their indices, so use few warps with many loads in flight per
    # thread. Each thread should have the eight elements of one block of random numbers; otherwise
    # the numbers would be exchanged between threads.
    wide = 256 if work.draws else 128
    warps = (
        columns * rows // (2048 if work.gathers else wide if is_wide else 512 if is_small else 256)
    )
    return Config(
        x=columns,
        r=max(rows, 1),
        persistent=persistent,
        num_warps=_clamp(warps, 1, 8 if is_wide else 4),
    )


def _tile_of_columns(work: Workload, columns: int, length: int) -> Config:
    """Whole short columns in the registers of one or two warps, which then exchange little data."""
    warps = 1 if length <= 32 else 2
    bytes_per_row = 128 if work.operations <= 2 * LONG_COLUMNS else 64
    columns = min(
        columns,
        max(32, 1024 // length) if warps == 1 else _clamp(bytes_per_row // work.itemsize, 16, 64),
    )
    return Config(
        x=columns, r=length, persistent=True, num_warps=_clamp(columns * length // 256, 1, warps)
    )


def _few_columns(work: Workload, length: int) -> Config:
    """Few columns, all of them in the cache: the number of loads in flight is decisive."""
    several = work.passes > 1
    rows = min(length, 1024 if several else 512 if length > 256 else 128)
    columns = _clamp(TILE_ELEMENTS // rows, (8 if several else 16) // work.itemsize, 16)
    return Config(
        x=columns, r=rows, persistent=several and rows == length, num_warps=4 if rows <= 128 else 8
    )
