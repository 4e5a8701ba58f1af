"""Names of TensorBoard's groups.

They are ordered by the alphabet, as are the names in each, and the first two are open. The first
has what a person looks for: loss, mse_on_validation and, in the end, the trajectory.
"""

FIRST, SECOND = "main", "more"
