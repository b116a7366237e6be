"""Operators of a decoder-only transformer, and who implements them."""
