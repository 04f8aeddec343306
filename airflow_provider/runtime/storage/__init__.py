"""The only room that touches fsspec: places for documents with atomic put and put-if-absent."""
