"""Storage of documents with atomic put and put-if-absent; the only package that touches fsspec."""
