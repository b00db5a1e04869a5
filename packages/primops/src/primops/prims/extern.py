"""Extern prims: libraries do them, or their result's size depends on data. A graph spells each by
an ATen overload.

One prim stands for all overloads of the operators listed: they differ in arguments (a bias, an
epilogue, a device's layout), not in what a backend must call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from primops.meta import TensorMeta, contiguous_strides
from primops.prim import ExternPrim, Layout, add
from primops.shapes import size_hint

DOT = "products accumulate in float32 or wider (integers: the operand's dtype), in any order"
SOLVER = "that of the library: backward stable in the operand's dtype"
ORDER = "exact"

_TABLE = f"""
matmul | {DOT}
  mm: mm addmm _addmm_activation linear mkldnn_linear _int_mm _scaled_mm _scaled_mm_v2 _mixed_dtypes_linear _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu | a @ b of matrices, with c * beta + alpha * (a @ b) in the variants that take c
  bmm: bmm baddbmm | mm for each matrix of a batch
  grouped_mm: _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _foreach_mm transformers::grouped_mm_fallback | mm for each group of rows
  grouped_mm_backward: transformers::grouped_mm_fallback_backward | gradients of both operands of grouped_mm
convolution | {DOT}
  convolution: convolution _convolution convolution_overrideable mkldnn_convolution mkldnn_rnn_layer _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_depthwise3d _conv_depthwise2d _nnpack_spatial_convolution conv_tbc miopen_rnn cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu cudnn_convolution_add_relu _cudnn_rnn | sum over channels and window of x[n, c, o*stride - padding + k*dilation] * w[m, c, k] + b[m], or its transpose
  convolution_backward: convolution_backward convolution_backward_overrideable mkldnn_rnn_layer_backward _cudnn_rnn_backward miopen_rnn_backward | gradients of x, w and b of convolution
attention | {DOT}
  attention: _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _efficient_attention_forward _transformer_encoder_layer_fwd _native_multi_head_attention | softmax(q @ k.T * scale + mask) @ v per head
  attention_backward: _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward _flash_attention_backward _efficient_attention_backward | gradients of q, k and v of attention
sort | {ORDER}
  sort: sort msort | values in order along a dim, and their positions
  topk: topk | the k largest or smallest along a dim, and their positions
  kth: kthvalue median nanmedian | the k-th smallest along a dim, and its position
  mode: mode | the most frequent value along a dim, and its position
  search: searchsorted bucketize | position at which a value keeps a sequence sorted
  histogram: histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors bincount | number of values per bin
scan | accumulates in the operand's dtype
  running_extreme: cummax cummin | running maximum or minimum along a dim, and its position
  logcumsumexp: logcumsumexp _logcumsumexp | log of the running sum of exp(x), from running maxima
data-dependent | {ORDER}
  nonzero: nonzero nonzero_static masked_select argwhere | positions (or elements) where a mask is true, in row-major order
  unique: _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive | distinct values, with inverse and counts
  repeat_interleave: repeat_interleave | each element repeated a number of times that data gives
  masked_scatter: masked_scatter masked_scatter_backward | elements of a source put where a mask is true, in order
  item: _local_scalar_dense item equal is_nonzero allclose _is_all_true _is_any_true | a number or truth value for the host
  segment_reduce: segment_reduce _segment_reduce_backward | reduction of runs whose lengths data gives
  embedding_bag: _embedding_bag _embedding_bag_forward_only _embedding_bag_backward _embedding_bag_per_sample_weights_backward | sum, mean or max of the rows of each bag
  embedding_bag_backward: _embedding_bag_dense_backward | the gradient of embedding_bag's table
  ctc_loss: _ctc_loss _cudnn_ctc_loss | negative log probability of all alignments of target and sequence
  ctc_loss_backward: _ctc_loss_backward | its gradient
random | {ORDER}
  sample: multinomial poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad randperm normal | draws that counters do not express
FFT | relative error O(log n) ULP
  fft_r2c: _fft_r2c | Fourier transform of real numbers, half of the spectrum
  fft_c2r: _fft_c2r | inverse of fft_r2c
  fft_c2c: _fft_c2c | Fourier transform of complex numbers
linear algebra | {SOLVER}
  cholesky: linalg_cholesky_ex cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper | L with L @ L.H = a, and what follows from it
  lu: linalg_lu linalg_lu_factor_ex linalg_lu_solve lu_unpack | P @ L @ U = a, and solutions by it
  ldl: linalg_ldl_factor_ex linalg_ldl_solve | L @ D @ L.H = a, and solutions by it
  triangular_solve: linalg_solve_triangular triangular_solve | x with t @ x = b for a triangular t
  qr: linalg_qr geqrf linalg_householder_product ormqr | Q @ R = a, and products with Q
  svd: _linalg_svd | U @ diag(S) @ V.H = a
  eigh: _linalg_eigh | eigenvalues and vectors of a Hermitian matrix
  eig: linalg_eig _linalg_eigvals | eigenvalues and vectors of a square matrix
  solve: _linalg_solve_ex linalg_inv_ex linalg_lstsq linalg_pinv | x with a @ x = b, exact or of least squares
  det: _linalg_det _linalg_slogdet | determinant, or its sign and logarithm
  matrix_exp: linalg_matrix_exp _compute_linear_combination | sum of a**k / k!
  linalg_check: _linalg_check_errors | raises when a factorisation reported a failure
complex | as ATen on complex numbers
  complex: complex polar view_as_complex view_as_complex_copy view_as_real view_as_real_copy _conj _conj_copy _conj_physical _neg_view _neg_view_copy | complex numbers from and to pairs of real ones, conjugates
memory | {ORDER}
  as_strided: as_strided as_strided_copy as_strided_scatter | elements of memory at offset + sum(index * stride)
  to_device: _to_copy copy _copy_from _pin_memory lift_fresh _lazy_clone | a copy on another device or in another layout
interpolation | accumulates in float32
  resample: _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward | interpolation with a filter as wide as the scale
check | raises or passes
  assert: _assert_async _assert_scalar _functional_assert_async _functional_assert_scalar _assert_tensor_metadata sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range _functional_sym_constrain_range_for_size _async_error _print | an error unless a condition holds
collective | that of the reduction; order by the library
  all_reduce: _c10d_functional::all_reduce _c10d_functional::all_reduce_coalesced | the reduction over ranks, on all
  all_gather: _c10d_functional::all_gather_into_tensor _c10d_functional::all_gather_into_tensor_coalesced | all ranks' tensors one after the other, on all
  reduce_scatter: _c10d_functional::reduce_scatter_tensor _c10d_functional::reduce_scatter_tensor_coalesced | this rank's part of the reduction over ranks
  all_to_all: _c10d_functional::all_to_all_single | part i of this rank's tensor sent to rank i
  broadcast: _c10d_functional::broadcast | one rank's tensor, on all
  wait: _c10d_functional::wait_tensor | the tensor, once its collective is done
"""


def _is_channels_last(meta: TensorMeta) -> bool:
    """ATen's test on strides, under which dims of size 1 also order channels."""
    least = 0
    for dim in (1, *range(meta.ndim - 1, 1, -1), 0):
        stride = size_hint(meta.strides[dim]) or 0
        if stride < max(least, 1) or (dim == 0 and least == size_hint(meta.strides[1])):
            return False
        least = stride * max(size_hint(meta.shape[dim]) or 1, 1)
    return True


def _with_height(meta: TensorMeta) -> TensorMeta:
    """The image of height 1 as which a 1-d convolution runs."""
    if meta.ndim != 3:
        return meta
    (batch, channels, width), steps = meta.shape, meta.strides
    strides = (*steps[:2], width * steps[2], steps[2])
    return TensorMeta((batch, channels, 1, width), strides, meta.dtype, meta.device)


def _convolved(operands: tuple[Any, ...], results: list[TensorMeta]) -> list[TensorMeta]:
    """A convolution's result is channels last where x or w is; in float64 only that of images."""
    (result,) = results
    has_kernel = result.ndim == 4 or result.dtype is not torch.float64
    if not has_kernel or not any(_is_channels_last(_with_height(x)) for x in operands[:2]):
        return [replace(result, strides=contiguous_strides(result.shape))]
    batch, *others, channels = contiguous_strides(
        (result.shape[0], *result.shape[2:], result.shape[1])
    )
    return [replace(result, strides=(batch, channels, *others))]


def _by_columns(*positions: int) -> Layout:
    """Results whose matrices are column-major on the CPU, as LAPACK writes them."""

    def transposed(meta: TensorMeta) -> TensorMeta:
        if meta.ndim < 2:  # not computed
            return meta
        *batch, rows, columns = meta.shape
        *steps, a, b = contiguous_strides((*batch, columns, rows))
        return replace(meta, strides=(*steps, b, a)) if meta.device.type == "cpu" else meta

    return lambda operands, results: [
        transposed(m) if i in positions else m for i, m in enumerate(results)
    ]


# Strides that the meta kernels do not know.
LAYOUTS = {"convolution": _convolved, "svd": _by_columns(0, 2), "eig": _by_columns(1)}


def _read() -> tuple[ExternPrim, ...]:
    made: list[ExternPrim] = []
    group: dict[str, str] = {}
    for line in _TABLE.strip().splitlines():
        left, _, right = (part.strip() for part in line.partition("|"))
        if not line.startswith(" "):
            group = {"group": left, "numerics": right}
            continue
        name, _, operators = left.partition(":")
        layout = LAYOUTS.get(name)
        made.append(add(ExternPrim(name, operators.split(), layout, meaning=right, **group)))
    return tuple(made)


EXTERN_PRIMS = _read()
"""All of them, in groups."""
