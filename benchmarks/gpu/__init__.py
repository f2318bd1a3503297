"""`make bench-gpu`: speed on a GPU beside other libraries, in one command that takes less than 8 minutes."""
