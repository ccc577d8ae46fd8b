"""A GPU as a machine: a trace played kernel by kernel (docs/gpu.md)."""
