"""Training a whole model so that its layers say early what the last one says (LayerSkip, arXiv 2404.16710)."""
