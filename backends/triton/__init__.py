"""The operators as Triton kernels, for NVIDIA and AMD GPUs; without one they run in Triton's interpreter, or are compiled ahead."""
