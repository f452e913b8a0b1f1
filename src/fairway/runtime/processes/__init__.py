"""The processes of jobs on one machine, and the files that let them outlive their scheduler."""
