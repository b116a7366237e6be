"""One file a format: from a checkpoint's tensors of one linear layer to a packed weight, and back."""
