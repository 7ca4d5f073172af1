"""The training of heads, in torch: features, modules, losses, the loop."""
