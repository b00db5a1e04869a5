"""Loop kernels as C++: decisions first, then the text."""
