"""Templates for matrix products and convolutions."""
