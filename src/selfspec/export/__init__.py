"""What leaves this machine: bundles that run a model elsewhere, without a network."""
