"""Measuring: what speculation costs and gains, and whether it changed a word."""
