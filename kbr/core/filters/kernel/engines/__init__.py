"""Forms of the step for many points, few points, and sensors that may be absent."""
