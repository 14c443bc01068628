"""Measuring decoders: prompt sets, alternated runs, outside baselines, tables."""
