"""The pictures of the documents, made from what they show: `make pictures`."""
