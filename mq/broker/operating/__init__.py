"""What operators and their tools look at and change."""
