"""Gradients scaled by the layers' Kronecker-factored curvature."""
