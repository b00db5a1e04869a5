"""The loop IR: operations, kernels and programs, with their text form, checks and an evaluator."""
