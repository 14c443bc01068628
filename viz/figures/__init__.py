"""Records in, Plotly figures out; one file a picture."""
