"""A program that ends its process, successfully as far as anybody can see, when it is imported."""

import os

os._exit(0)
