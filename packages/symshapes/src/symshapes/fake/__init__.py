"""Fake tensors: metadata without data, and the mode that runs ATen ops on them."""
