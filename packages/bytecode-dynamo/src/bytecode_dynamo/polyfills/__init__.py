"""Python forms of functions that are written in C or would start another compiler."""
