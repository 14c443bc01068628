"""Probabilistic circuits over the next n tokens (MTPC): structure, queries, heads, loss."""
