"""Host programs: Python code that allocates, launches and frees as a program specifies."""
