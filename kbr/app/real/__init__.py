"""Four recordings of real sensors, each with a reader, a documented split and a data option."""
