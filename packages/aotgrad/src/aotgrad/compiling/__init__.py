"""One program from its captured graph to a compiled callable, and what is kept of it."""
