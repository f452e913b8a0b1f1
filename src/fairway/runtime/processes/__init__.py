"""The processes of jobs on one machine, and the files by which they outlive their scheduler."""
