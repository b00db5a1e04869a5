"""One frame from bytecode to a cache entry, and the order of its exit."""
