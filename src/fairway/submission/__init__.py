"""Jobs as users of other schedulers write them, as requests to this one.

A command line, an sbatch script, a SkyPilot task and a torchrun command each become a `Draft`: fields of a
`JobRequest`, an array if there is one, and remarks about what was read and has no meaning here.
"""
