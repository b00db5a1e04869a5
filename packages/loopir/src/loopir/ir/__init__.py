"""The loop IR: operations, kernels and programs, with text forms, checks and an evaluator."""
