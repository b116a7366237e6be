"""The operators as Triton kernels, for NVIDIA and AMD GPUs. Without one: compiled ahead, or in Triton's interpreter."""
