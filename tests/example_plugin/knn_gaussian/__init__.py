"""A nearest-neighbour method for gpbench."""
