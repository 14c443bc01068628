"""Multi-token prediction: draft several tokens, verify them in one forward, commit what stands."""
