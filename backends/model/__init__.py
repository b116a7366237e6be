"""The models: what a checkpoint's architecture is, its weights, and one forward pass for all of them."""
