"""Drafters: each proposes a tree of tokens for the verifier to judge."""
