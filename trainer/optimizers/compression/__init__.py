"""Gradients of which only the largest elements travel."""
