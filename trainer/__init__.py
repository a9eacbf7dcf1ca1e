"""Distributed training on TensorFlow's own runtime: models, data, update rules, cluster.

Importing this package loads no TensorFlow; each module says when it does.
"""
