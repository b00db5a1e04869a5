"""What differs between the versions of torch, found by asking the one that is installed."""

from __future__ import annotations

import math

import torch

NAN_LIMIT_WINS = bool(torch.full((1,), 0.0, device="cpu").clamp(min=math.nan).isnan().all())
"""Whether ``clamp`` with a number for one limit only gives NaN where that is NaN; torch 2.11 gives
its input.
"""

NEGATIVE_LIMITS_WRAP = bool(torch.zeros(1, dtype=torch.uint8, device="cpu").clamp(min=-1))
"""Whether a negative limit of unsigned integers wraps around; in torch 2.15 it has no effect."""
