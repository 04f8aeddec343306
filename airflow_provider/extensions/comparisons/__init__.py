"""A second answer: a finished run is computed once more and compared, and so are two versions."""
