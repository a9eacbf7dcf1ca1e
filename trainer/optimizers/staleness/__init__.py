"""Asynchronous pushes with a bound: on the age of a gradient, or on the lead of a worker."""
