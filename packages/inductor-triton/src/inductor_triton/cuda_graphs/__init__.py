"""Host programs as CUDA graphs: recorded once, replayed while they hold."""
