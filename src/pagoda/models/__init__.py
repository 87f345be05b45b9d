"""Model families as data, and the loading of their weights."""
