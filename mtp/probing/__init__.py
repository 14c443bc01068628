"""Embedding-space probing: what a frozen model says about later tokens at mask positions."""
