"""The processes of a run: where each stands, how they are launched, how they part."""
