"""What every part stands on: arrays of any library, axes, positions, the equation itself."""
