"""Quantized checkpoints made from plain ones, layer by layer."""
