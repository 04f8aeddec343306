"""What a DAG author sees."""
