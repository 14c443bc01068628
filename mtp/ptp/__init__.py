"""Parallel token prediction (PTP, arXiv 2512.21323): the noise of sampling as an input."""
