"""Measuring on the user's own model and machine: `certify` proves that speculation changes nothing."""
