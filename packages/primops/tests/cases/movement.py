"""Cases of views, indexing, creation."""

from __future__ import annotations

import torch

from packages.primops.tests.cases.make import case, with_options

# Views
# --------------------------------------------------------------------------------------------------

case("_to_copy", lambda m: with_options(m.f(3), dtype=torch.float64),
    lambda m: with_options(m.f(3) * 9, dtype=torch.int32),
     lambda m: with_options(m.i(9, 3), dtype=m.dtype), lambda m: with_options(m.f(3)),
     lambda m: with_options(m.f(3), dtype=torch.bool))  # fmt: skip
case("to.dtype", lambda m: (m.f(3), torch.float64))
case("view.dtype", lambda m: (m.f(4), torch.int32 if m.dtype is torch.float32 else torch.int16))
case("copy", lambda m: (m.f(3, 4), m.f(4).double()))
case(
    "view _unsafe_view reshape view_copy",
    lambda m: (m.f(3, 4), [2, -1]),
    lambda m: (m.f(3, 4), [12]),
    lambda m: (m.f(1), []),
)
case("_reshape_copy", lambda m: (m.f(3, 4), [2, 6]))
case("_reshape_alias", lambda m: (m.f(3, 4), [2, 6], [6, 1]))
case("permute permute_copy", lambda m: (m.f(2, 3, 4), [2, 0, -2]))
case("transpose.int transpose_copy.int", lambda m: (m.f(2, 3, 4), -1, 0), lambda m: (m.f(), 0, 0))
case("t t_copy", lambda m: (m.f(2, 3),), lambda m: (m.f(2),))
case("numpy_T", lambda m: (m.f(2, 3),))
case("expand expand_copy", lambda m: (m.f(3, 1), [2, -1, 4]))
case("unsqueeze unsqueeze_copy", lambda m: (m.f(2, 3), -1), lambda m: (m.f(2, 3), 0))
case("squeeze squeeze_copy", lambda m: (m.f(2, 1, 3, 1),))
case("squeeze.dim squeeze_copy.dim", lambda m: (m.f(2, 1, 3), 1), lambda m: (m.f(2, 1, 3), 0))
case("squeeze.dims squeeze_copy.dims", lambda m: (m.f(2, 1, 1), [0, 1]))
case("flip", lambda m: (m.f(2, 3), [-1, 0]))
case("roll", lambda m: (m.f(3, 4), [1, -1], [0, 1]), lambda m: (m.f(3, 4), [5], []))
case("repeat", lambda m: (m.f(2, 3), [2, 1, 3]))
case("diagonal diagonal_copy", *[lambda m, k=k: (m.f(3, 4, 2), k, 0, 1) for k in (-4, -1, 0, 2)])
case("slice.Tensor slice_copy.Tensor", lambda m: (m.f(5, 3), 0, 1, -1),
    lambda m: (m.f(5), 0, 0, 2**63 - 1, 2),
     lambda m: (m.f(5), 0, -9, 9), lambda m: (m.f(5), 0, 4, 2))  # fmt: skip
case("narrow narrow_copy", lambda m: (m.f(5, 3), 0, 1, 3))
case("select.int select_copy.int", lambda m: (m.f(3, 4), 1, -1), lambda m: (m.f(3), 0, 1))
case(
    "split.Tensor unsafe_split.Tensor split_copy.Tensor",
    lambda m: (m.f(5, 3), 2),
    lambda m: (m.f(2, 6), 3, -1),
)
case(
    "split_with_sizes unsafe_split_with_sizes split_with_sizes_copy split.sizes",
    lambda m: (m.f(5, 3), [1, 0, 4]),
)
case("chunk unsafe_chunk", lambda m: (m.f(5, 3), 2, 0))
case("unbind.int unbind_copy.int", lambda m: (m.f(3, 2), 1))
case(
    "slice_scatter",
    lambda m: (m.f(5, 3), m.f(2, 3), 0, 1, 3),
    lambda m: (m.f(5, 3), m.f(3, 3), 0, 0, 5, 2),
)
case("as_strided as_strided_copy", lambda m: (m.f(3, 4), [2, 3], [5, 1], 1),
    lambda m: (m.f(3, 4).t(), [4, 3, 1], [1, 4, 9]),
     lambda m: (m.f(3, 4), [3, 2, 4], [3, 0, 1]))  # fmt: skip
case(
    "as_strided_scatter",
    lambda m: (m.f(3, 4), m.f(2, 3), [2, 3], [5, 1], 1),
    lambda m: (m.f(3, 4).t(), m.f(3, 4), [3, 4], [4, 1]),
)
case("histc", lambda m: (m.f(30) * 9, 7, -3, 5.5), lambda m: (m.f(2, 3), 4, -1, 1))
case("resize_as", lambda m: (m.f(3, 4), m.f(2, 5)))
case("select_scatter", lambda m: (m.f(5, 3), m.f(5), 1, -1))
case(
    "slice_backward",
    lambda m: (m.f(2, 3), [5, 3], 0, 1, 3, 1),
    lambda m: (m.f(3, 3), [5, 3], 0, 0, 2**63 - 1, 2),
)
case("select_backward", lambda m: (m.f(5), [5, 3], 1, -1))
case(
    "cat concat",
    lambda m: ([m.f(2, 3), m.f(0), m.f(1, 3)], 0),
    lambda m: ([m.f(2, 3), m.i(4, 2, 1)], -1),
)
case("stack", lambda m: ([m.f(2, 3), m.f(2, 3)], -1))
case(
    "constant_pad_nd",
    lambda m: (m.f(2, 3), [1, -1, 0, 2], 1.5),
    lambda m: (m.i(4, 2, 3), [1, 1], 2),
    lambda m: (m.i(4, 2, 3), [1, 1], 2.7),
)
case(
    "unfold_backward",
    lambda m: (m.f(4, 4, 3), [4, 9], 1, 3, 2),
    lambda m: (m.f(4, 5, 3), [9, 5], 0, 3, 2),
    lambda m: (m.f(2, 6, 5, 2), [2, 7, 5], 1, 2, 1),
)
case("im2col", lambda m: (m.f(2, 3, 5, 6), [2, 3], [1, 1], [0, 1], [2, 1]))
case("col2im", lambda m: (m.f(2, 18, 12), [5, 6], [2, 3], [1, 1], [0, 1], [2, 1]))
case("pixel_shuffle", lambda m: (m.f(2, 8, 3, 2), 2))
case("flatten.using_ints", lambda m: (m.f(2, 3, 4), 1, -1))

# Indexing
# --------------------------------------------------------------------------------------------------

case(
    "index.Tensor _unsafe_index.Tensor",
    lambda m: (m.f(4, 3), [None, m.i(3, 2, 2)]),
    lambda m: (m.f(4, 3, 2), [m.i(4, 5), None, m.i(2, 1)]),
)
case(
    "index.Tensor",
    lambda m: (m.f(4, 3), [m.i(4, 5, low=-4), m.i(3, 5)]),
    lambda m: (m.f(4, 3), [m.b(4)]),
)
case(
    "index_put _unsafe_index_put",
    lambda m: (m.f(4, 3), [m.i(4, 5)], m.f(5, 3), True),
    lambda m: (m.f(4, 3), [torch.tensor([0, 2])], m.f(1, 3)),
)
case(
    "index_put",
    lambda m: (m.f(4, 3), [m.b(4, 3)], torch.tensor(7.0).to(m.dtype)),
    lambda m: (m.f(4, 3), [None, torch.tensor([-1])], m.f(1)),
)
case(
    "index_select",
    lambda m: (m.f(4, 3), -1, m.i(3, 5)),
    lambda m: (m.f(4, 3), 0, torch.tensor(2, dtype=torch.int32)),
)
case(
    "index_add",
    lambda m: (m.f(4, 3), 0, m.i(4, 5), m.f(5, 3)),
    lambda m: with_options(m.f(4), 0, m.i(4, 5), m.f(5), alpha=2),
)
case("index_copy", lambda m: (m.f(4, 3), 0, torch.tensor([3, 0]), m.f(2, 3)))
case("index_fill.int_Scalar", lambda m: (m.f(4, 3), 1, torch.tensor([-1, 0]), 1.5))
case("gather", lambda m: (m.f(4, 3), 1, m.i(3, 2, 5)), lambda m: (m.f(3), 0, m.i(3, 4)))
case("scatter.src", lambda m: (m.f(4, 3), 0, torch.tensor([[3, 1, 0]]), m.f(2, 3)))
case("scatter.value", lambda m: (m.f(4, 3), 0, torch.tensor([[3, 1, 0]]), 2.5))
case("scatter_add", lambda m: (m.f(4, 3), 0, m.i(4, 3, 2), m.f(3, 3)))
case("value_selecting_reduction_backward", lambda m: (m.f(4), 1, m.i(3, 4), [4, 3], False))
case("take", lambda m: (m.f(4, 3), m.i(12, 2, 2, low=-12)))
case("embedding", lambda m: (m.f(5, 3), m.i(5, 2, 4)), lambda m: (m.f(5, 3), m.i(5, 2).int(), 1))
case("embedding_dense_backward", lambda m: (m.f(2, 4, 3), m.i(5, 2, 4), 5, -1, False),
     lambda m: (m.f(6, 3), m.i(5, 6), 5, 2, False),
     lambda m: (m.f(6, 3), m.i(5, 6), 5, -1, True))  # fmt: skip
case("one_hot", lambda m: (m.i(4, 2, 3), 5))

# Creation
# --------------------------------------------------------------------------------------------------

case(
    "zeros ones empty.memory_format",
    lambda m: ([2, 3],),
    lambda m: with_options([2], dtype=torch.int32),
)
case(
    "zeros_like ones_like empty_like",
    lambda m: (m.f(2, 3),),
    lambda m: with_options(m.f(2), dtype=torch.bool),
)
case("new_zeros new_ones new_empty", lambda m: (m.f(2, 3), [4]))
case("empty_strided", lambda m: ([2, 3], [1, 2]))
case("new_empty_strided", lambda m: (m.f(2), [2, 3], [1, 2]))
case(
    "full",
    lambda m: ([2], 3),
    lambda m: ([2], 2.5),
    lambda m: ([], True),
    lambda m: with_options([2], 7, dtype=torch.bfloat16),
)
case("full_like", lambda m: (m.f(2, 3), 3), lambda m: with_options(m.i(3, 2), 2.7))
case("new_full", lambda m: (m.f(2, 3), [4], 1.5))
case("fill.Scalar", lambda m: (m.f(2), 3))
case("fill.Tensor", lambda m: (m.f(2), torch.tensor(3.0)))
case("scalar_tensor", lambda m: (2.5,), lambda m: with_options(2, dtype=torch.int64))
case("arange", lambda m: (5,), lambda m: with_options(5, dtype=torch.float32), lambda m: (2.5,))
case("arange.start", lambda m: (2, 7), lambda m: (0.5, 2.25))
case(
    "arange.start_step",
    lambda m: (2, 9, 3),
    lambda m: (9, 0, -2),
    lambda m: (0, 1, 0.1),
    lambda m: with_options(1, 9, 2, dtype=m.dtype),
)
case("linspace", lambda m: (0, 1, 7), lambda m: (-2.5, 9, 10), lambda m: (1, 2, 1))
case("eye", lambda m: (3,))
case("eye.m", lambda m: (3, 2))
case("tril triu", lambda m: (m.f(3, 4), 1), lambda m: (m.f(2, 3, 3), -1), lambda m: (m.b(3, 3),))
case("diag_embed", lambda m: (m.f(2, 3),))
