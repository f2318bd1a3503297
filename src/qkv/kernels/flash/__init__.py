"""PyTorch's fused attention on a CPU: its operators, and how arrays are laid out for them."""
