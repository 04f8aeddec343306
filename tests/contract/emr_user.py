"""User of the tests' EMR Serverless; in a module of its own, since moto takes long to import."""

KEY, SECRET = "AKIAOFTHETESTS000000", "s3cr3t-of-amazon"
