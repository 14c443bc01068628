"""The app's pages, one file a tab."""
