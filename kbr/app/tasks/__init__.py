"""What a run is asked to do: simulated tasks and their frames."""
