"""What the numbers of a recording mean: units, angles, names, time."""
