"""Sources as the job names them."""
