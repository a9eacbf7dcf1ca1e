"""What every test shares."""

import os

# TensorFlow's start-up notices are not about the tests; children inherit this, too.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
