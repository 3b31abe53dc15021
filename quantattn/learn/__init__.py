"""Training: the loop, its checkpoints, the run folder and what closes a run."""
