"""Foundations of all parts: arrays of any library, axes, positions, and the equation itself."""
