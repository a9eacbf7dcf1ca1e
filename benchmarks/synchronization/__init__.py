"""The synchronizations side by side."""
