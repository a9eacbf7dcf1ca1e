"""What is claimed fast or exact, measured side by side in one run."""
