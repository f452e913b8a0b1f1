"""Code that exists only to repeat published simulators: their rounds and epochs, their solver, their forms of policies.

Only `policies.registry.make_policy` and `simulator.engines` load it, and only if `--rules` or a knob asks for it.
"""
