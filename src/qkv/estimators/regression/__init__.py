"""Kernel regression: bandwidths, lines and scales of residuals, by leave-one-out over rows near each other."""
