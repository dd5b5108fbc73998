"""A method that fails when it is told to."""
