"""Training: recipes, the loop, checkpoints and run folders."""
