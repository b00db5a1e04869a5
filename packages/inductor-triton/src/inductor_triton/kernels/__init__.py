"""From a loop kernel to Triton source: passes, tiling, and the text of each instruction."""
