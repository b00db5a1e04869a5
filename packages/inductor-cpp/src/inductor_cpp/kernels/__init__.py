"""Loop kernels as C++: what is decided before any text is written, and the text."""
