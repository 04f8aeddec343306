"""Optional parts, each with an extra of its own. The rest of the package imports none of them."""
