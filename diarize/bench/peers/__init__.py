"""Scripts that run another system in its own interpreter; they import nothing of this project."""
