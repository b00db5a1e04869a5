"""Operators that are extern calls by design: libraries do them, or their result's size depends on the data."""

from __future__ import annotations

from torch._ops import OpOverload

_FAMILIES: dict[str, str] = {
    "matrix product": "mm bmm addmm baddbmm addbmm addmv mv dot vdot _int_mm _scaled_mm linear mkldnn_linear",
    "convolution": (
        "convolution convolution_backward mkldnn_convolution _convolution mkldnn_rnn_layer mkldnn_rnn_layer_backward miopen_rnn"
    ),
    "attention": (
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_transformer_encoder_layer_fwd _native_multi_head_attention"
    ),
    "windows": (
        "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward "
        "avg_pool3d avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward _adaptive_avg_pool3d "
        "_adaptive_avg_pool3d_backward upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward "
        "upsample_nearest1d upsample_nearest1d_backward upsample_nearest3d upsample_nearest3d_backward upsample_linear1d "
        "upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward grid_sampler_2d "
        "grid_sampler_2d_backward reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward "
        "replication_pad2d "
        "replication_pad2d_backward im2col col2im _embedding_bag "
        "_embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward"
    ),
    "order": "sort topk kthvalue median msort searchsorted bucketize histc unique_consecutive _unique2 mode bincount",
    "data-dependent size": "nonzero masked_select _local_scalar_dense item repeat_interleave masked_scatter",
    "linear algebra": (
        "linalg_cholesky_ex cholesky_solve linalg_lu_factor_ex linalg_lu_solve linalg_solve_triangular triangular_solve "
        "linalg_qr _linalg_svd _linalg_eigh linalg_inv_ex _linalg_solve_ex _linalg_det linalg_householder_product lu_unpack"
    ),
    "Fourier transform": "_fft_r2c _fft_c2r _fft_c2c",
    "random": "randn randint randperm normal normal_functional randn_like randint_like exponential multinomial geometric",
    "memory": "as_strided as_strided_scatter _to_copy copy",
    "functions without a prim": (
        "erfc erfinv digamma polygamma i0 special_i0e special_i1 special_i1e special_ndtri nextafter gcd lcm igamma igammac"
    ),
    "check": "_assert_async _assert_scalar sym_constrain_range sym_constrain_range_for_size",
}

EXTERN_OPS: frozenset[str] = frozenset(f"aten::{name}" for names in _FAMILIES.values() for name in names.split())


def is_declared_extern(op: OpOverload) -> bool:
    """Whether the operator is listed here; operators of other namespaces (custom ones) always are extern."""
    name = op.name().partition(".")[0]
    return name in EXTERN_OPS or not name.startswith("aten::")
