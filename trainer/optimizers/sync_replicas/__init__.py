"""Synchronous rounds: the mean of the gradients of all who are there."""
