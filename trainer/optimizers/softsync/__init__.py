"""The server updates after a number of gradients, weighted by their staleness."""
