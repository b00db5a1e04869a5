"""Host programs: Python that allocates, launches and frees as a scheduled program says."""
