"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

from torch.utils import checkpoint

CHECKPOINT_GENERATOR = "_checkpoint_without_reentrant_generator"
"""The generator that ``torch.utils.checkpoint`` runs a function in; torch 2.15 has it under another
name.
"""
if hasattr(checkpoint, f"{CHECKPOINT_GENERATOR}_impl"):
    CHECKPOINT_GENERATOR = f"{CHECKPOINT_GENERATOR}_impl"
