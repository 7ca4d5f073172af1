"""Draft models made of a model's own layers, which learn its distributions."""
