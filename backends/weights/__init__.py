"""Weights: reading checkpoints, making them up, and writing small ones."""
