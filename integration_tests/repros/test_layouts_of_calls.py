"""Strides and dtypes around operators that stay calls."""

from __future__ import annotations

import pytest
import torch

from integration_tests.repros.backend import compiled


def test_only_empty_tensors_concatenated(tmp_path) -> None:
    x = torch.zeros(0, 3)
    (result,) = compiled(lambda x: torch.cat([x, x]), (x,), tmp_path)(x)
    assert result.shape == (0, 3)


def test_complex_tensor_laid_out_anew(tmp_path) -> None:
    x = torch.randn(5, 6, 7, requires_grad=True)
    call = compiled(lambda x: torch.fft.hfft(x, dim=0), (x,), tmp_path)
    (result,) = call(x)
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    (expected,) = torch.autograd.grad(torch.fft.hfft(x, dim=0).square().sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_overlapping_memory_stays_a_call(tmp_path) -> None:
    x = torch.randn(3)
    (result,) = compiled(lambda x: torch.empty_strided((5, 5), (2, 1)), (x,), tmp_path)(x)
    assert result.stride() == (2, 1)


def test_strides_of_sizes_one_are_those_asked_for(tmp_path) -> None:
    x = torch.randn(3)
    (result,) = compiled(lambda x: x.new_empty_strided((1, 1, 12), (5, 20, 10)), (x,), tmp_path)(x)
    assert result.stride() == (5, 20, 10)


def test_constants_made_by_window_functions(tmp_path) -> None:
    (result,) = compiled(lambda: torch.signal.windows.hann(4, sym=False), (), tmp_path)()
    torch.testing.assert_close(result, torch.signal.windows.hann(4, sym=False))


def test_windows_added_up_that_repeat_themselves(tmp_path) -> None:
    window = torch.hann_window(8)
    spectrum = torch.stft(torch.randn(2, 16), 8, 2, return_complex=True, window=window)
    invert = lambda s, w: torch.istft(s, 8, 2, window=w)  # noqa: E731
    (result,) = compiled(invert, (spectrum, window), tmp_path)(spectrum, window)
    torch.testing.assert_close(result, invert(spectrum, window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_groups_pad_their_rows(tmp_path, dtype) -> None:
    ends = torch.tensor([8, 8, 40], dtype=torch.int32)
    pairs = [
        (torch.randn(40, 16), torch.randn(3, 13, 16).mT, ends),
        (torch.randn(3, 24, 16), torch.randn(40, 16).mT, ends),
        (torch.randn(24, 40), torch.randn(13, 40).mT, ends),
        (torch.randn(3, 24, 16), torch.randn(3, 13, 16).mT, None),
    ]
    for a, b, along in pairs:
        inputs = (a.to(dtype), b.to(dtype), *([] if along is None else [along]))
        (result,) = compiled(torch._grouped_mm, inputs, tmp_path)(*inputs)
        expected = torch._grouped_mm(*inputs)
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()
