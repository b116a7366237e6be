"""Products with packed weights: expanded within the kernel, or multiplied as they are where inputs are quantized too."""
