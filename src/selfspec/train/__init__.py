"""Training: data that the target writes, and the heads that draft for it."""
