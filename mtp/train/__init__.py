"""Making the data and weights the project ships: corpora, models, circuits, adapters."""
