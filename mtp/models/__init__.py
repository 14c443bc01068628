"""Models: names, weights, loading, one forward of a block, and its cache."""
