"""How fast the optimizer kernels are, beside what else could do their work: see ``__main__``."""
