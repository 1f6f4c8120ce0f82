"""The engine under studies and comparisons: jobs, trainings, costs, verdicts."""
