"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

from torch.utils import checkpoint

NOT_REENTRANT = "_checkpoint_without_reentrant_generator"
"""The generator in ``torch.utils.checkpoint`` around what runs again in backward; from torch 2.15 on it is below another."""
if hasattr(checkpoint, f"{NOT_REENTRANT}_impl"):
    NOT_REENTRANT = f"{NOT_REENTRANT}_impl"
