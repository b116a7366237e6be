"""Quantized weights on the real engine: recognised in checkpoints, kept packed, and what each means in plain torch."""
