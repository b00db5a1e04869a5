"""Python forms of what is written in C, or would start another compiler."""
