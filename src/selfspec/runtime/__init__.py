"""What runs layer plans on hardware; see `base`."""
