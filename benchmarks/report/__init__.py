"""The results of a run as files and pages, and the goals that they meet."""
