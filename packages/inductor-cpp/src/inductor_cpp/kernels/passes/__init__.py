"""What is worked out about a kernel before it is written."""
